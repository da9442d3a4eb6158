#include <gtest/gtest.h>

#include "hetermoe/base/hash.h"
#include "hetermoe/ops/buffers.h"
#include "hetermoe/schedule/expected_ops.h"
#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"

// Phases R (recompute ahead) and W (gradients of weights after those of inputs).
namespace hetermoe {
namespace {

using test::find_op, test::has_fault, test::has_text, test::no_faults;

/// One device of attention (0) and one of experts (1); layer 0 is dense.
class Levers : public ::testing::Test {
 protected:
  Levers() { plan.weight_gradients = WeightGradients::kAfter, plan.recompute = Recompute::kAhead; }

  /// "read rows 1, add grad 3": mode, buffer and layer (of a state: its number).
  std::string accesses_of(Op op, DeviceId device, const StepOptions& options = {}) {
    op.microbatch = 0;
    const Placement placement(plan, model, options);
    std::vector<Access> found;
    accesses(op, device, placement, found);
    std::string text;
    for (const Access& access : found) {
      const char* mode = access.mode == Mode::kRead ? "read" : access.mode == Mode::kWrite ? "write" : "add";
      const i32 at =
          access.key.has_layer() || access.key.shape() == KeyShape::kOfState ? access.key.layer() : -1;
      text += fmt::format("{}{} {} {}", text.empty() ? "" : ", ", mode, name_of(access.buffer()), at);
    }
    return text;
  }
  /// Ops of a device's compute lane.
  std::string computed(DeviceId device, const StepOptions& options = {}) {
    const Schedule schedule = build_schedule(plan, model, options);
    EXPECT_TRUE(no_faults(validate(schedule, plan, model, options)));
    std::string text;
    for (OpId op = 0; op < schedule.num_ops(); ++op) {
      if (schedule.lanes_of(op)[0] != lane_of(device, Queue::kCompute)) continue;
      text += to_string(schedule.ops[static_cast<std::size_t>(op)]) + ", ";
    }
    return text;
  }

  ModelConfig model = test::make_model({.num_layers = 2, .dense = {0}});
  Plan plan = test::make_zebra_plan(model, test::make_cluster({1, 1}), {});
};

// States: 0 embedding, 1 attention of layer 0, 2 and 3 attention and experts of layer 1, 4 head.

TEST_F(Levers, RowsOfTheAccessTable) {
  const auto attention = [](Phase phase, i32 layer) {
    return Op{.kind = OpKind::kAttention, .phase = phase, .layer = layer};
  };
  const auto experts = [](Phase phase) { return Op{.kind = OpKind::kExperts, .phase = phase, .layer = 1}; };
  EXPECT_EQ(accesses_of(attention(Phase::kRecompute, 0), 0),
            "read params 1, read hidden 0, write saved_attention 0");
  EXPECT_EQ(accesses_of(attention(Phase::kRecompute, 1), 0),
            "read params 2, read hidden 1, read routing 1, write saved_attention 1");
  EXPECT_EQ(accesses_of(attention(Phase::kBackward, 0), 0),
            "read params 1, read hidden 0, read d_hidden 0, read saved_attention 0, write d_hidden -1, "
            "write left_attention 0");
  EXPECT_EQ(accesses_of(attention(Phase::kBackward, 1), 0),
            "read params 2, read hidden 1, read d_hidden 1, read saved_attention 1, read routing 1, "
            "read d_send 1, write d_hidden 0, write left_attention 1, add figures -1");
  EXPECT_EQ(accesses_of(attention(Phase::kWeights, 1), 0), "read left_attention 1, add grad 2");
  EXPECT_EQ(accesses_of(experts(Phase::kRecompute), 1),
            "read params 3, read load 1, read rows 1, write saved_experts 1");
  EXPECT_EQ(accesses_of(experts(Phase::kBackward), 1),
            "read params 3, read load 1, read rows 1, read d_out 1, read saved_experts 1, write d_rows 1, "
            "write left_experts 1");
  EXPECT_EQ(accesses_of(experts(Phase::kWeights), 1),
            "read rows 1, read d_out 1, read left_experts 1, add grad 3");
}

TEST_F(Levers, SelectBringsRowsAgainAndNothingElse) {
  plan.recompute = Recompute::kSelect, plan.weight_gradients = WeightGradients::kWith;
  const auto at = [](OpKind kind, Phase phase) { return Op{.kind = kind, .phase = phase, .layer = 1}; };
  EXPECT_EQ(accesses_of(at(OpKind::kAttention, Phase::kForward), 0),
            "read params 2, read residual 0, write hidden 1, write residual 1, write saved_attention 1, "
            "write send 1, write routing 1");
  EXPECT_EQ(accesses_of(at(OpKind::kAttention, Phase::kRecompute), 0),
            "read params 2, read hidden 1, read routing 1, read saved_attention 1, write send 1");
  EXPECT_EQ(accesses_of(at(OpKind::kExperts, Phase::kForward), 1),
            "read params 3, read load 1, read rows 1, write out 1, write saved_experts 1");
  EXPECT_EQ(accesses_of(at(OpKind::kExperts, Phase::kBackward), 1),
            "read params 3, read load 1, read rows 1, read d_out 1, read saved_experts 1, write d_rows 1, "
            "add grad 3");
  // The dense layer has no rows to send: its backward makes again what it lacks.
  EXPECT_TRUE(has_text(computed(0),
                       "head.F m0, head.F m1, attention.R l1 m0, attention.R l1 m1, attention.B l1 m0, "
                       "attention.B l1 m1, attention.B l0 m0, embed.B m0, attention.B l0 m1, embed.B m1, "));
  EXPECT_TRUE(has_text(computed(1), "experts.F l1 m0, experts.F l1 m1, experts.B l1 m0, experts.B l1 m1, "));
  const Schedule s = build_schedule(plan, model);
  EXPECT_GE(find_op(s, "dispatch.R l1 m0"), 0);
  EXPECT_LT(find_op(s, "combine.R l1 m0"), 0);
}

TEST_F(Levers, RecomputationStandsBeforeBackwardAndGradientsOfWeightsBehindIt) {
  EXPECT_TRUE(has_text(
      computed(0),
      "head.F m0, head.F m1, attention.R l1 m0, attention.B l1 m0, attention.W l1 m0, attention.R l1 m1, "
      "attention.B l1 m1, attention.W l1 m1, attention.R l0 m0, attention.B l0 m0, attention.W l0 m0, "
      "embed.B m0, attention.R l0 m1, attention.B l0 m1, attention.W l0 m1, embed.B m1, "));
  EXPECT_TRUE(has_text(computed(1),
                       "experts.F l1 m1, experts.R l1 m0, experts.B l1 m0, experts.W l1 m0, experts.R l1 m1, "
                       "experts.B l1 m1, experts.W l1 m1, update s3"));
}

TEST_F(Levers, WhatTravelsDoesNotWaitForRecomputationNorForGradientsOfWeights) {
  const Schedule s = build_schedule(plan, model);
  // combine.B leaves after the head, dispatch.B after experts.B.
  const auto deps = [&](const char* op) {
    std::string text;
    for (const OpId dep : s.deps_of(find_op(s, op)))
      text += to_string(s.ops[static_cast<std::size_t>(dep)]) + ", ";
    return text;
  };
  EXPECT_EQ(deps("combine.B l1 m0"), "head.F m0, ");
  EXPECT_TRUE(has_text(deps("dispatch.B l1 m0"), "experts.B l1 m0, "));
  EXPECT_FALSE(has_text(deps("dispatch.B l1 m0"), "experts.W"));
  EXPECT_EQ(deps("experts.R l1 m0"), "");  // its rows are there since the forward pass
}

TEST_F(Levers, ExpertsThatShareADeviceWithAttentionFillTheWayBack) {
  plan = test::make_zebra_plan(model, test::make_cluster({1}),
                               {.experts = 0, .microbatches = 1, .strategy = "single"});
  plan.weight_gradients = WeightGradients::kAfter, plan.recompute = Recompute::kAhead;
  EXPECT_TRUE(has_text(computed(0),
                       "head.F m0, experts.R l1 m0, experts.B l1 m0, experts.W l1 m0, attention.R l1 m0, "
                       "attention.B l1 m0, attention.W l1 m0, attention.R l0 m0, attention.B l0 m0, "
                       "attention.W l0 m0, embed.B m0, "));
}

TEST_F(Levers, AStateIsReducedAfterTheGradientsOfItsWeights) {
  plan = test::make_zebra_plan(model, test::make_cluster({2, 2}), {.attention = 2, .experts = 2});
  plan.weight_gradients = WeightGradients::kAfter;
  const Schedule s = build_schedule(plan, model);
  for (const auto& [reduce, weights] :
       {std::pair("reduce s1", "attention.W l0 m1"), std::pair("reduce s2", "attention.W l1 m1")}) {
    ASSERT_GE(find_op(s, reduce), 0);
    EXPECT_GT(find_op(s, reduce), find_op(s, weights, 0)) << reduce;
    EXPECT_GT(find_op(s, reduce), find_op(s, weights, 1)) << reduce;
  }
}

TEST_F(Levers, FrozenPartsHaveNoGradientsOfWeights) {
  const StepOptions frozen = {.frozen = {{.layer = 0, .part = UnitPart::kAttention}}};
  EXPECT_FALSE(has_text(computed(0, frozen), "attention.W l0"));
  EXPECT_TRUE(has_text(computed(0, frozen), "attention.W l1"));
  const Op backward = {.kind = OpKind::kAttention, .phase = Phase::kBackward, .layer = 0};
  EXPECT_FALSE(has_text(accesses_of(backward, 0, frozen), "left_attention"));
}

TEST_F(Levers, ValidationHasNeither) {
  EXPECT_FALSE(has_text(computed(0, {.backward = false}), ".W"));
  EXPECT_FALSE(has_text(computed(0, {.backward = false}), ".R"));
}

TEST_F(Levers, AnOrderByHandListsThem) {
  const std::string text = to_text(build_schedule(plan, model));
  const Schedule sound = build_schedule(plan, model);
  plan.order = OrderPolicy::kExplicit;
  plan.explicit_order = text;
  EXPECT_EQ(hash(build_schedule(plan, model)), hash(sound));
  for (const char* op : {"experts.W l1 m1", "attention.R l0 m0"}) {
    const std::string entry = fmt::format("{} {} | ", find_op(sound, op), op);
    ASSERT_NE(text.find(entry), std::string::npos);
    plan.explicit_order = text;
    plan.explicit_order.erase(text.find(entry), entry.size());
    EXPECT_TRUE(has_text(error_of([&] { build_schedule(plan, model); }), fmt::format("{} on device", op)));
  }
}

TEST_F(Levers, ADroppedDependencyIsMissed) {
  const Schedule sound = build_schedule(plan, model);
  i64 dropped = 0;
  for (std::size_t i = 0; i < sound.deps.size(); ++i) {
    Schedule s = sound;
    s.deps.erase(s.deps.begin() + static_cast<std::ptrdiff_t>(i));
    for (std::size_t op = 0; op < s.dep_begin.size(); ++op) {
      if (sound.dep_begin[op] > static_cast<i64>(i)) --s.dep_begin[op];
    }
    EXPECT_FALSE(validate(s, plan, model, {}).empty()) << i;
    ++dropped;
  }
  EXPECT_GT(dropped, 20);
}

}  // namespace
}  // namespace hetermoe
