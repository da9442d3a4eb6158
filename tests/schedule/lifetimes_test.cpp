#include "hetermoe/schedule/lifetimes.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

using test::make_cluster, test::make_model, test::make_zebra_plan;

struct LifetimeCase {
  ModelConfig model;
  Plan plan;
  Schedule schedule;
  Lifetimes lifetimes;

  LifetimeCase(const test::ModelShape& model_shape, const test::ZebraShape& shape,
               Recompute recompute = Recompute::kLocal)
      : model(make_model(model_shape)),
        plan(make_zebra_plan(model, make_cluster({shape.attention, shape.experts}), shape)) {
    plan.recompute = recompute;
    schedule = build_schedule(plan, model);
    lifetimes = make_lifetimes(schedule, Placement(plan, model, {}));
  }

  /// Ops that touch a buffer's epochs, one list per epoch.
  std::vector<std::vector<std::string>> users(Buffer buffer, DeviceId device, i32 layer) const {
    std::vector<std::vector<std::string>> out;
    for (std::size_t e = 0; e < lifetimes.epochs.size(); ++e) {
      const Epoch& epoch = lifetimes.epochs[e];
      if (epoch.key.buffer() != buffer || epoch.device != device || epoch.key.microbatch() > 0) continue;
      if (epoch.key.has_layer() && epoch.key.layer() != layer) continue;
      out.emplace_back();
      for (OpId op = 0; op < schedule.num_ops(); ++op) {
        for (std::size_t i = 0; i < schedule.lanes_of(op).size(); ++i) {
          for (const i32 use : lifetimes.uses_of(schedule, op, i)) {
            if (use == static_cast<i32>(e))
              out.back().push_back(to_string(schedule.ops[static_cast<std::size_t>(op)]));
          }
        }
      }
      EXPECT_EQ(static_cast<i32>(out.back().size()), epoch.num_ops);
      EXPECT_EQ(out.back().front(), to_string(schedule.ops[static_cast<std::size_t>(epoch.first)]));
    }
    return out;
  }
};

using Users = std::vector<std::vector<std::string>>;

TEST(Lifetimes, SavedInputsLiveUntilTheirBackward) {
  const LifetimeCase c({.num_layers = 1}, {.microbatches = 1});
  EXPECT_EQ(c.users(Buffer::kHidden, 0, 0),
            (Users{{"embed.F m0", "attention.F l0 m0", "attention.B l0 m0"}}));
  EXPECT_EQ(c.users(Buffer::kRows, 1, 0),
            (Users{{"dispatch.F l0 m0", "experts.F l0 m0", "experts.B l0 m0"}}));
  EXPECT_EQ(c.users(Buffer::kOut, 1, 0), (Users{{"experts.F l0 m0", "combine.F l0 m0"}}));
  EXPECT_EQ(c.users(Buffer::kReturned, 0, 0), (Users{{"combine.F l0 m0", "head.F m0"}}));
  EXPECT_EQ(c.users(Buffer::kHidden, 0, 1),
            (Users{{"head.F m0"}}));  // the head's input: merged and used at once
  EXPECT_EQ(c.users(Buffer::kRows, 0, 0), Users{});
}

TEST(Lifetimes, SentRowsOfTheRecomputationAreASecondLife) {
  const LifetimeCase c({.num_layers = 1}, {.microbatches = 1}, Recompute::kResend);
  EXPECT_EQ(c.users(Buffer::kRows, 1, 0),
            (Users{{"dispatch.F l0 m0", "experts.F l0 m0"},
                   {"dispatch.R l0 m0", "experts.R l0 m0", "experts.B l0 m0"}}));
  EXPECT_EQ(c.users(Buffer::kReturned, 0, 0), (Users{{"combine.F l0 m0", "head.F m0"}, {"combine.R l0 m0"}}));
}

TEST(Lifetimes, AGradientLivesThroughAllItsAdditions) {
  const LifetimeCase c({.num_layers = 1}, {.microbatches = 2});
  const i32 experts = 2;  // state index: embed, attention, experts, head
  EXPECT_EQ(c.users(Buffer::kGrad, 1, experts),
            (Users{{"experts.B l0 m0", "experts.B l0 m1", "norm", "update s2"}}));
}

TEST(Lifetimes, EveryBufferOfEveryOpBelongsToALife) {
  const LifetimeCase c({.num_layers = 2}, {2, 2, 2, {0, 1}});
  std::vector<Access> touched;
  std::size_t lane = 0;
  const Placement placement(c.plan, c.model, {});
  for (OpId op = 0; op < c.schedule.num_ops(); ++op) {
    for (std::size_t i = 0; i < c.schedule.lanes_of(op).size(); ++i, ++lane) {
      touched.clear();
      accesses(c.schedule.ops[static_cast<std::size_t>(op)], device_of(c.schedule.lanes_of(op)[i]), placement,
               touched);
      std::set<BufferKey> expected, found;
      for (const Access& a : touched) {
        if (!outlives_step(a.buffer())) expected.insert(a.key);
      }
      for (const i32 use : c.lifetimes.uses_of(c.schedule, op, i)) {
        const Epoch& e = c.lifetimes.epochs[static_cast<std::size_t>(use)];
        EXPECT_EQ(e.device, device_of(c.schedule.lanes_of(op)[i]));
        found.insert(e.key);
      }
      EXPECT_EQ(found, expected);
    }
  }
  EXPECT_EQ(c.lifetimes.use_begin.size(), c.schedule.lanes.size() + 1);
}

}  // namespace
}  // namespace hetermoe
