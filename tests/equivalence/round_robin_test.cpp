#include <gtest/gtest.h>

#include <random>

#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/strategies/round_robin_plan.h"
#include "tests/equivalence/against_reference.h"
#include "tests/support/strategy_plans.h"

// Layers whose backward pass is on other devices than their forward pass give the gradients of the reference.
namespace hetermoe::testing {
namespace {

Cluster one_node(i32 num_devices) {
  Cluster cluster = make_cluster(num_devices, 1, 1);
  cluster.nodes[0].host = NodeHost{.memory_gib = 64};
  return cluster;
}

StrategyRequest rounds(i64 sequences, i64 microbatches, i32 window) {
  StrategyRequest request;
  request.seq_len = 4;
  request.sequences = sequences;
  request.microbatches = microbatches;
  request.window = window;
  return request;
}

class RoundRobin : public ::testing::TestWithParam<const char*> {};

TEST_P(RoundRobin, GivesTheGradientsOfTheReference) {
  ModelConfig model = load_model(GetParam());
  if (model.aux_loss_coef == 0) model.aux_loss_coef = 0.01;
  bool moved = false, indivisible = false;
  for (const i32 num_devices : {2, 3, 4}) {
    const Cluster cluster = one_node(num_devices);
    // Microbatches of unequal size; a last round that is shorter; rounds shorter than the devices.
    for (const i32 window : {-1, num_devices, 2}) {
      Plan plan = find_strategy("roundpipe").make(model, cluster, rounds(7, 5, window));
      for (const LayerPlacement& layer : plan.groups[0].layers)
        moved = moved || !layer.attention_backward.empty();
      indivisible = indivisible || plan.groups[0].embed.size() > 1;
      for (const char* on_host : {"none", "all", "saved"}) {
        offload(plan, model, cluster, {on_host}, "test");
        const Comparison c = against_reference(model, cluster, plan);
        EXPECT_LE(c.max(), kTolerance)
            << num_devices << " devices, window " << window << ", host " << on_host << ": loss " << c.loss
            << ", gradient " << c.gradient << " of " << c.worst;
      }
    }
  }
  EXPECT_TRUE(moved);
  EXPECT_TRUE(indivisible) << "no number of turns that does not divide by the devices";
}

INSTANTIATE_TEST_SUITE_P(Equivalence, RoundRobin, ::testing::Values("tiny", "tiny-qwen3", "tiny-deepseek-v3"),
                         [](const auto& info) {
                           std::string name = info.param;
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name;
                         });

/// Rounds overtake each other, turns that follow each other are on one device, devices differ in speed.
TEST(DealtTurns, AnyDealGivesTheGradientsOfTheReference) {
  const ModelConfig model = load_model("tiny");
  std::mt19937 random(5);
  for (int trial = 0; trial < 8; ++trial) {
    const i32 num_devices = 2 + trial % 3;
    const Cluster cluster = one_node(num_devices);
    Plan plan = find_strategy("roundpipe").make(model, cluster, rounds(7, 5, 2));
    Rounds dealt{.split = {.forward = {1}, .fused = 2, .backward = {1}}, .round = 2};
    dealt.split.lengths = {1, 6, 4};
    for (int turn = 0; turn < 9; ++turn) dealt.dealt.push_back(static_cast<i64>(random() % num_devices));
    for (i32 d = 0; d < num_devices; ++d) dealt.lengths.push_back({1.0 + d, 6.0 + d, 4.0 + 3 * d});
    deal_turns(plan, dealt);
    offload(plan, model, cluster, {trial % 2 == 0 ? "all" : "none"}, "test");
    const Comparison c = against_reference(model, cluster, plan);
    EXPECT_LE(c.max(), kTolerance) << "trial " << trial << ": loss " << c.loss << ", gradient " << c.gradient
                                   << " of " << c.worst;
  }
}

/// Shares of several devices, and experts of owners elsewhere, in another order.
TEST(BackwardShares, OfEveryLayerUnderEveryOrder) {
  ModelConfig model = load_model("tiny");
  const Cluster cluster = one_node(4);
  for (const OrderPolicy order :
       {OrderPolicy::kLayerMajor, OrderPolicy::kRoundRobin, OrderPolicy::kOneFOneB}) {
    for (const i32 chunks : {1, 2}) {
      StrategyRequest request = rounds(8, 4, 2);
      Plan plan = find_strategy("ep").make(model, cluster, request);
      plan.order = order;
      plan.chunks = chunks;
      plan.recompute = Recompute::kResend;
      Group& group = plan.groups[0];
      group.embed = make_share_rows({0, 1}, group.microbatches, {});
      group.head = make_share_rows({3, 0}, group.microbatches, {});
      for (LayerPlacement& layer : group.layers) {
        layer.attention = make_share_rows({0, 1}, group.microbatches, {});
        layer.attention_backward = make_share_rows({2, 3}, group.microbatches, {});
      }
      const Comparison c = against_reference(model, cluster, plan);
      EXPECT_LE(c.max(), kTolerance) << name_of(order) << ": loss " << c.loss << ", gradient " << c.gradient
                                     << " of " << c.worst;
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
