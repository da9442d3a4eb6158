#include <gtest/gtest.h>

#include "hetermoe/plan/pipeline_tasks.h"
#include "tests/equivalence/against_reference.h"

// Pipelines whose stages come again on the same devices give the gradients of the reference.
namespace hetermoe::testing {
namespace {

/// Two and three runs of layers, groups of windows that are full and not, dense layers and layers with
/// experts, gradients of weights with and after, on one, two and three types.
TEST(Interleaved, GivesTheGradientsOfTheReference) {
  ModelConfig model = load_model("tiny");
  model.num_layers = 6;
  model.dense_layer.assign(6, false);
  model.dense_layer[0] = true;
  model.dense_hidden = 16;
  int runs = 0;
  for (const i32 types : {1, 2, 3}) {
    const Cluster cluster = make_cluster(6, types);
    for (const char* strategy : {"pp-ep", "pp-zebra"}) {
      for (int i = 0; i < 8; ++i) {
        StrategyRequest request;
        request.seq_len = 4;
        request.sequences = 6, request.microbatches = i < 4 ? 5 : 4;
        request.stages = 2 + i % 2, request.interleave = i % 2 == 0 ? 3 - i / 4 : 2;
        request.window = 1 + i / 2 % 2;
        const Roles roles = roles_of(find_strategy(strategy).use, cluster, {});
        if (static_cast<i64>(std::min(roles.attention.size(), roles.experts.size())) < request.stages)
          continue;
        Plan plan = find_strategy(strategy).make(model, cluster, request);
        EXPECT_EQ(pipeline_stages(plan.groups[0]).chunks(), request.interleave);
        plan.recompute = static_cast<Recompute>(i % 4);
        plan.weight_gradients = i % 3 == 0 ? WeightGradients::kAfter : WeightGradients::kWith;
        const Comparison c = against_reference(model, cluster, plan);
        EXPECT_LE(c.max(), 1e-10) << strategy << " " << i << " on " << types << " types: loss " << c.loss
                                  << ", gradient " << c.gradient << " of " << c.worst;
        ++runs;
      }
    }
  }
  EXPECT_GE(runs, 30);
}

}  // namespace
}  // namespace hetermoe::testing
