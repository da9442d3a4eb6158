#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "hetermoe/ops/buffers.h"
#include "hetermoe/routing/split_routing.h"
#include "tests/support/op_count.h"
#include "tests/support/tally_plan.h"

// The op `tally`: where it is, what it touches, and what refuses it.
namespace hetermoe::testing {
namespace {

struct TallyCase {
  ModelConfig model = tiny_mixtral();
  Cluster cluster = make_cluster(5);
  Plan plan;
  explicit TallyCase(const std::string& strategy = "ep", i32 chunks = 1) {
    plan = find_strategy(strategy).make(model, cluster, small_step());
    plan.chunks = chunks;
    use_lplb(plan, model);
  }
};

TEST(Tally, IsOncePerLayerWithExpertsAndMicrobatch) {
  for (const i32 chunks : {1, 3}) {
    TallyCase c("ep", chunks);
    const Schedule with = build_schedule(c.plan, c.model);
    EXPECT_EQ(count(with, OpKind::kTally), 2 * 2);
    EXPECT_TRUE(validate(with, c.plan, c.model).empty());
    c.plan.tally = false;
    c.plan.foreseen = chunks == 3;  // known beforehand: nothing is told
    const Schedule without = build_schedule(c.plan, c.model);
    EXPECT_EQ(with.num_ops() - without.num_ops(), 2 * 2);
  }
}

TEST(Tally, IsRefusedWithResendAndWithOtherDevicesForBackward) {
  TallyCase c;
  EXPECT_TRUE(validate(c.plan, c.model, c.cluster).empty());
  c.plan.recompute = Recompute::kResend;
  EXPECT_EQ(validate(c.plan, c.model, c.cluster).at(0),
            "[groups[0].layers[0].recompute] is resend, which no plan with tally may have. Use local");
  c.plan.recompute = Recompute::kSelect;
  EXPECT_EQ(validate(c.plan, c.model, c.cluster).at(0),
            "[groups[0].layers[0].recompute] is select, which no plan with tally may have. Use local");
  c.plan.tally = false;
  c.plan.foreseen = true;
  EXPECT_EQ(
      validate(c.plan, c.model, c.cluster).at(0),
      "[groups[0].layers[0].recompute] is select, which no plan with foreseen counts may have. Use local");
  c.plan.tally = true;
  c.plan.recompute = Recompute::kLocal;
  Shares other = c.plan.groups[0].layers[1].attention;
  for (ShareRow& row : other) std::reverse(row.begin(), row.end());
  c.plan.groups[0].layers[1].attention_backward = other;
  EXPECT_EQ(
      validate(c.plan, c.model, c.cluster).at(0),
      "[groups[0].layers[1].attention_backward] differs from attention, which no plan with tally may have");
}

TEST(Tally, GoesThroughJson) {
  TallyCase c;
  EXPECT_FALSE(c.plan.foreseen);
  c.plan.foreseen = true;
  const Plan back = plan_from_json(to_json(c.plan), "plan");
  EXPECT_TRUE(back.tally);
  EXPECT_TRUE(back.foreseen);
  EXPECT_EQ(back.split_speeds, c.plan.split_speeds);
}

/// What an op of layer 0 touches on a device, in words.
std::vector<std::string> touched(const Placement& p, OpKind kind, DeviceId device) {
  static const std::vector<std::string> modes = {"read", "write", "add", "take"};
  const Op op = {.kind = kind, .layer = 0, .microbatch = 0};
  std::vector<Access> all;
  accesses(op, device, p, all);
  std::vector<std::string> out;
  for (const Access& access : all) out.push_back(modes[idx(access.mode)] + " " + name_of(access.buffer()));
  return out;
}

// Claim: a row of the access table of `tally` that is dropped is noticed
TEST(Tally, TouchesRoutingAndTheTallyThatDispatchReads) {
  const TallyCase c("zebra");
  const Placement p(c.plan, c.model, {});
  const DeviceId source = c.plan.groups[0].layers[0].attention[0][0].device, owner = p.owners(0, 0)[0];
  using Words = std::vector<std::string>;
  EXPECT_EQ(touched(p, OpKind::kTally, source), (Words{"read routing", "write tally"}));
  EXPECT_EQ(touched(p, OpKind::kTally, owner), (Words{}));
  EXPECT_EQ(touched(p, OpKind::kDispatch, source),
            (Words{"write load", "read tally", "read send", "read routing"}));
  EXPECT_EQ(touched(p, OpKind::kDispatch, owner), (Words{"write load", "write rows"}));
}

}  // namespace
}  // namespace hetermoe::testing
