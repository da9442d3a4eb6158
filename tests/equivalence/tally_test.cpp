#include <gtest/gtest.h>

#include "hetermoe/routing/exchange_split.h"
#include "tests/equivalence/ran_step.h"
#include "tests/support/error_of.h"
#include "tests/support/tally_plan.h"

// Copies divided by their counts in each exchange: the numbers are the reference's, and the counts those that
// the split says.
namespace hetermoe::testing {
namespace {

constexpr double kTolerance = 1e-10;

TEST(Tally, RandomPlansEqualTheReference) {
  i64 runs = 0, tallied = 0, replicas = 0, groups = 0;
  for (u64 seed = 1; runs < 60; ++seed) {
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
  EXPECT_GT(tallied, 100);
  EXPECT_GT(replicas, 20);
  EXPECT_GT(groups, 5);
}

TEST(Tally, SharesOfThePlanDoNotMatterThen) {
  const ModelConfig model = tiny_mixtral();
  const Cluster cluster = make_cluster(4);
  StrategyRequest request = small_step();
  Plan plan = find_strategy("ep").make(model, cluster, request);
  use_lplb(plan, model);
  use_fp64(plan);
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
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  use_lplb(plan, model);
  use_fp64(plan);
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
