#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/depth_groups.h"
#include "tests/equivalence/against_reference.h"

// Depth groups (AF-Pipe) give the gradients of the reference.
namespace hetermoe::testing {
namespace {

struct DepthCase {
  std::vector<i64> depth_groups;
  i64 layers;
  i32 devices;
  std::vector<i64> stage_attention = {}, stage_experts = {};
};

ModelConfig deep_model(i64 layers, bool tied) {
  ModelConfig model = load_model("tiny");
  model.num_layers = layers;
  model.dense_layer.assign(static_cast<std::size_t>(layers), false);
  model.dense_layer[0] = layers % 2 == 1;
  model.dense_hidden = 16;
  model.tie_embeddings = tied;
  return model;
}

/// One to three groups, unequal ones, other numbers of groups with attention and with experts, layers that do
/// not divide; the head on either role; chunks, windows, recomputation and microbatches that differ.
void check_depth_groups(CombineTo combine_to) {
  const std::vector<DepthCase> cases = {{{1}, 4, 2},   {{2}, 4, 4},    {{2}, 5, 6, {2, 1}, {1, 2}},
                                        {{3}, 4, 6},   {{2, 1}, 4, 4}, {{1, 2}, 3, 4},
                                        {{3, 2}, 5, 6}};
  const std::vector<i64> microbatches = {1, 3, 8};
  std::size_t i = 0;
  for (const DepthCase& c : cases) {
    const Cluster cluster = make_cluster(c.devices, 1 + static_cast<i32>(i % 3));
    for (const HeadOn head_on : {HeadOn::kExperts, HeadOn::kAttention}) {
      for (const i64 count : microbatches) {
        const ModelConfig model = deep_model(c.layers, i % 3 == 0);
        StrategyRequest request;
        request.seq_len = 4;
        request.sequences = 9, request.microbatches = count;
        request.attention = device_range(0, c.devices / 2);
        request.experts = device_range(c.devices / 2, c.devices);
        request.depth_groups = c.depth_groups;
        request.stage_attention = c.stage_attention, request.stage_experts = c.stage_experts;
        request.head_on = head_on;
        request.window = static_cast<i32>(i % 4);
        Plan plan = find_strategy("af-pipe").make(model, cluster, request);
        const DepthGroups made = depth_groups_of(plan.groups[0]);
        EXPECT_EQ(made.attention, c.depth_groups.front());
        EXPECT_EQ(made.experts, c.depth_groups.back());
        plan.combine_to = combine_to;
        plan.chunks = 1 + static_cast<i32>(i % 2);
        plan.recompute = static_cast<Recompute>(i % kEnumCount<Recompute>);
        plan.weight_gradients = i % 3 == 1 ? WeightGradients::kAfter : WeightGradients::kWith;
        if (i % 5 == 0) plan.queue_binding = QueueBinding::kPhase;
        const Comparison found = against_reference(model, cluster, plan);
        EXPECT_LE(found.max(), 1e-10)
            << i << ": loss " << found.loss << ", gradient " << found.gradient << " of " << found.worst;
        ++i;
      }
    }
  }
}

// Claim: depth groups give the gradients of the reference: one to three groups, unequal ones, head on either
// role
TEST(DepthGroups, GiveTheGradientsOfTheReference) { check_depth_groups(CombineTo::kSource); }
TEST(DepthGroups, GiveTheGradientsOfTheReferenceWhereResultsGoToTheNextLayer) {
  check_depth_groups(CombineTo::kNext);
}

}  // namespace
}  // namespace hetermoe::testing
