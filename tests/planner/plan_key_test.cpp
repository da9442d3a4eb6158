#include "hetermoe/planner/search/plan_key.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

Plan ep_plan() {
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = 4;
  request.microbatches = 2;
  return find_strategy("ep").make(test::make_model({.num_layers = 2, .num_experts = 4}),
                                  test::make_cluster({2}), request);
}

template <class Change>
bool tells_apart(Change change) {
  const Plan plan = ep_plan();
  Plan other = plan;
  change(other);
  return key_of(plan) != key_of(other);
}

TEST(PlanKey, IsEqualForEqualPlansWhoeverMadeThem) {
  EXPECT_FALSE(tells_apart([](Plan& plan) { plan.strategy = "planned"; }));
  EXPECT_FALSE(tells_apart([](Plan& plan) { plan.predicted_step_s = 1; }));
}

TEST(PlanKey, TellsOrderAndSharesOfLayersApart) {
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.window = 2; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.chunks = 2; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.recompute = Recompute::kOff; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.groups[0].microbatches = {3, 1}; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.groups[0].layers[1].attention[0][0].sequences = 2; }));
}

TEST(PlanKey, TellsSharesOfOwnersApart) {
  const auto with_share = [](double share) {
    Plan plan = ep_plan();
    plan.groups[0].layers[0].experts[0] = {{.device = 0, .share = share}, {.device = 1, .share = 1 - share}};
    return key_of(plan);
  };
  EXPECT_NE(with_share(0.5), with_share(0.25));
  // Which experts a replica belongs to: [{0, 1}, {2}] and [{0}, {1, 2}].
  const auto with_owners = [](const ExpertOwners& first, const ExpertOwners& second) {
    Plan plan = ep_plan();
    plan.groups[0].layers[0].experts[0] = first;
    plan.groups[0].layers[0].experts[1] = second;
    return key_of(plan);
  };
  EXPECT_NE(with_owners({{0, 0.5}, {1, 0.5}}, {{0, 0.5}}), with_owners({{0, 0.5}}, {{1, 0.5}, {0, 0.5}}));
}

TEST(PlanKey, TellsSharesOfEmbeddingAndHeadApart) {
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.groups[0].embed = {{{0, 2}}}; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.groups[0].head = {{{1, 2}}}; }));
}

TEST(PlanKey, TellsDevicesOfAGroupApart) {
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.groups[0].devices = {0}; }));
}

TEST(PlanKey, TellsQueuesAndRowsApart) {
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.queue_binding = QueueBinding::kName; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.row_dedup = false; }));
}

TEST(PlanKey, TellsDtypesAndSlotsApart) {
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.master = Master::kNone; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.grad_dtype = Dtype::kBf16; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.wire_reduce = WireReduce::kBf16; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.moments_dtype = Dtype::kBf16; }));
  EXPECT_TRUE(tells_apart([](Plan& plan) { plan.slots.experts += 1; }));
}

}  // namespace
}  // namespace hetermoe
