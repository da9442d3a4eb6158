#include <gtest/gtest.h>

#include "hetermoe/routing/exchange_split.h"
#include "tests/equivalence/ran_step.h"
#include "tests/support/case_count.h"
#include "tests/support/error_of.h"
#include "tests/support/tally_plan.h"

// Copies divided by their counts in each exchange: the numbers are the reference's, and the counts those that
// the split says.
namespace hetermoe::testing {
namespace {

// Claim (Tally.*, NthCall.EveryFaultOfEveryTally*): copies divided by a tally in the step: the reference's
// loss and gradients for random plans with replicas, groups, chunks and three device types; wrong counts are
// refused by name; every fault of every tally ends with one error or the same result
TEST(Tally, RandomPlansEqualTheReference) {
  i64 runs = 0, tallied = 0, replicas = 0, groups = 0;
  for (u64 seed = 1; runs < case_count(25, 60); ++seed) {
    RandomCase c = random_case(seed);
    if (!use_tally(c.plan, c.model) || !validate(c.plan, c.model, c.cluster).empty()) continue;
    use_fp64(c.plan);
    const Ran got = run_step(c.model, c.cluster, c.plan, c.step);
    EXPECT_LE(got.difference.max(), kTolerance) << describe(c);
    ++runs;
    const Schedule schedule = build_schedule(c.plan, c.model, c.step);
    for (const Op& op : schedule.ops) tallied += op.kind == OpKind::kTally ? 1 : 0;
    for (const State& state : schedule.states)
      replicas += state.part == State::Part::kExperts && state.devices.size() > 1 ? 1 : 0;
    groups += c.plan.groups.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(tallied, case_count(40, 100));
  EXPECT_GT(replicas, case_count(8, 20));
  EXPECT_GT(groups, case_count(1, 5));
}

/// ep with copies of experts, divided by a tally, in fp64.
Plan lplb_plan(const ModelConfig& model, const Cluster& cluster) {
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  use_lplb(plan, model);
  use_fp64(plan);
  return plan;
}

/// Every device knows the choices: nothing is told, and the numbers are to the bit those with a tally.
// Claim (Tally.IsNotNeeded*, Tally.ADispatchOfOtherCounts*, StepBalancer.WhereChoicesAreReplayed*): counts
// that are foreseen need no tally: the same bits, fewer bytes; a dispatch with others is refused
TEST(Tally, IsNotNeededWhereChoicesAreReplayed) {
  i64 runs = 0, replicas = 0;
  for (u64 seed = 1; runs < case_count(15, 40); ++seed) {
    RandomCase c = random_case(seed);
    if (!use_tally(c.plan, c.model)) continue;
    const std::vector<at::Tensor> choices = random_choices(c.plan, c.model, seed);
    if (!validate(c.plan, c.model, c.cluster).empty()) continue;
    use_fp64(c.plan);
    const Ran told = run_step(c.model, c.cluster, c.plan, c.step, choices);
    c.plan.tally = false;
    c.plan.foreseen = true;
    EXPECT_TRUE(validate(c.plan, c.model, c.cluster).empty());
    for (const Op& op : build_schedule(c.plan, c.model, c.step).ops) EXPECT_NE(op.kind, OpKind::kTally);
    const Ran got = run_step(c.model, c.cluster, c.plan, c.step, choices);
    EXPECT_LE(got.difference.max(), kTolerance) << describe(c) << " " << got.difference.worst;
    expect_same_bits(got, told, describe(c));
    ++runs;
    for (const State& state : build_schedule(c.plan, c.model, c.step).states)
      replicas += state.part == State::Part::kExperts && state.devices.size() > 1 ? 1 : 0;
  }
  EXPECT_GT(replicas, case_count(3, 10));
}

/// Without choices nobody knows: as in validation, copies are divided by shares.
TEST(Tally, ForeseenCountsThatNobodyGivesLeaveTheShares) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4);
  Plan plan = lplb_plan(model, cluster);
  plan.tally = false;
  const Ran shares = run_step(model, cluster, plan, {true, 1, true});
  plan.foreseen = true;
  expect_same_bits(run_step(model, cluster, plan, {true, 1, true}), shares, "foreseen");
}

TEST(Tally, ADispatchOfOtherCountsThanWereForeseenIsRefused) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(3);
  Plan plan = lplb_plan(model, cluster);
  plan.tally = false;
  plan.foreseen = true;
  RigOptions options;
  options.on_send = [](const ExchangeCall& call, std::vector<Message>& out) {
    if (call.name != "dispatch.F l1 m0" || call.self != 0 || call.round != 0) return;
    at::Tensor& begins = out[2].tensors[0];
    // A copy of one expert is told as one of the expert before it on the same device.
    begins = begins.clone();
    i32* const next = begins.data_ptr<i32>();
    const i64 first = 3 + 1;  // behind rows of three owners
    for (i64 i = first + 1; i + 1 < begins.numel(); ++i) {
      if (next[i] < next[i + 1]) {
        ++next[i];
        return;
      }
    }
  };
  const std::vector<at::Tensor> choices = random_choices(plan, model, 2);
  const std::string error = error_of<Error>([&] {
    run_step(model, cluster, plan, {true, 1, true}, choices, options);
  });
  EXPECT_NE(error.find("dispatch.F l1 m0"), std::string::npos) << error;
  EXPECT_NE(error.find("by which they were divided"), std::string::npos) << error;
}

TEST(Tally, SharesOfThePlanDoNotMatterThen) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4);
  Plan plan = lplb_plan(model, cluster);
  const Ran one = run_step(model, cluster, plan, {true, 1, true});
  for (LayerPlacement& layer : plan.groups[0].layers) {
    for (ExpertOwners& owners : layer.experts) {
      if (owners.size() == 2) owners[0].share = 1, owners[1].share = 0;
    }
  }
  const Ran other = run_step(model, cluster, plan, {true, 1, true});
  expect_same_bits(one, other, "other shares");
}

TEST(Tally, WrongCountsAreRefusedByName) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(3);
  Plan plan = lplb_plan(model, cluster);
  RigOptions options;
  options.on_send = [](const ExchangeCall& call, std::vector<Message>& out) {
    if (call.name != "tally.F l1 m0" || call.self != 0) return;
    out[2].tensors[0] = out[2].tensors[0].add(1);
  };
  const std::string error = error_of<Error>([&] {
    run_step(model, cluster, plan, {true, 1, true}, {}, options);
  });
  EXPECT_NE(error.find("tally.F l1 m0] [message of device 0"), std::string::npos) << error;
  EXPECT_NE(error.find("copies of all experts: got "), std::string::npos) << error;
}

}  // namespace
}  // namespace hetermoe::testing
