#include "hetermoe/planner/search/pipeline_layers.h"

#include <gtest/gtest.h>

#include "hetermoe/cost/measured.h"
#include "hetermoe/cost/price.h"
#include "hetermoe/plan/pipeline_tasks.h"
#include "hetermoe/planner/predict.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/node_stages.h"
#include "hetermoe/planner/search/plan_key.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/sim/simulator.h"
#include "tests/schedule/plans.h"
#include "tests/support/stage_oracle.h"

namespace hetermoe {
namespace {

Plan make_pipeline(const ModelConfig& model, const Cluster& cluster, i64 microbatches) {
  StrategyRequest request;
  request.seq_len = 16;
  request.sequences = request.microbatches = microbatches;
  request.stages = 2;
  request.stage_layers = {5, 3};
  return find_strategy("pp-ep").make(model, cluster, request);
}

/// Devices do layer for layer what they did: recomputation, owners, number of layers.
TEST(Interleaved, EachStageKeepsWhatItsLayersWere) {
  const ModelConfig model = test::make_model({.num_layers = 8, .dense = {0, 1, 2}});
  const Cluster cluster = test::make_cluster({4});
  Plan plan = make_pipeline(model, cluster, 6);
  plan.groups[0].layers[4].recompute = Recompute::kOff;
  const std::optional<Plan> two = interleaved(plan, model, 2);
  ASSERT_TRUE(two);
  EXPECT_TRUE(test::no_faults(validate(*two, model, cluster)));
  const PipelineStages stages = pipeline_stages(two->groups[0]);
  EXPECT_EQ(stages.ranks, 2);
  EXPECT_EQ(stages.first_layer, (std::vector<i32>{0, 3, 5, 7}));
  EXPECT_EQ(two->groups[0].layers[6].recompute, Recompute::kOff) << "the fifth layer of the first stage";
  EXPECT_EQ(two->groups[0].head, plan.groups[0].head);
  EXPECT_FALSE(interleaved(*two, model, 2)) << "is interleaved";
  EXPECT_FALSE(interleaved(plan, model, 4)) << "the second stage has three layers";
  plan.order = OrderPolicy::kLayerMajor;
  EXPECT_FALSE(interleaved(plan, model, 2)) << "no pipeline";
}

/// Repeated windows are left out of simulations: what is predicted is what the whole step takes.
TEST(Interleaved, PredictionsAreThoseOfWholeSteps) {
  const ModelConfig model = test::make_model({.num_layers = 8});
  const Cluster cluster = test::make_cluster({4});
  const Plan plan = *interleaved(make_pipeline(model, cluster, 64), model, 2);
  Predictor predictor(model, cluster);
  const Seconds predicted = predictor.predict(plan).step;
  const Schedule schedule = build_schedule(plan, model);
  const std::unique_ptr<CostModel> cost = make_cost(model, cluster, plan, load_profiles(cluster));
  const ExpectedRouting routing(model);
  const Seconds whole =
      Simulator()
          .run(schedule, price(schedule, Placement(plan, model, {}), model, cluster, *cost, routing))
          .step;
  EXPECT_NEAR(predicted, whole, 0.01 * whole);
}

/// Who computes a layer changes; what else there is stays.
TEST(PipelineLayers, ALayerGoesOverToTheStageBeside) {
  const Cluster cluster = test::make_cluster({4});
  const ModelConfig model = test::make_model({.num_layers = 8, .dense = {0, 1, 2}});
  const Plan plan = make_pipeline(model, cluster, 6);
  const std::vector<i64> before = stage_layers(plan.groups[0]);
  const Plan moved = *with_layer_moved(plan, model, 1, 0);
  EXPECT_TRUE(validate(moved, model, cluster).empty());
  EXPECT_EQ(stage_layers(moved.groups[0]), (std::vector<i64>{before[0] + 1, before[1] - 1}));
  EXPECT_EQ(key_of(*with_layer_moved(moved, model, 0, 1)), key_of(plan));
  Plan one = plan;
  for (i64 left = before[1]; left > 1; --left) one = *with_layer_moved(one, model, 1, 0);
  EXPECT_FALSE(with_layer_moved(one, model, 1, 0)) << "a stage keeps a layer";
  EXPECT_FALSE(with_layer_moved(plan, model, 1, 2)) << "there is no third stage";
}

/// Plans are left out by their bounds, so none may be above its step.
TEST(NodePipelines, AreValidAndNoBoundIsAboveTheStep) {
  int plans = 0, mixed = 0;
  for (u64 seed = 1; seed <= 60; ++seed) {
    const PlanRequest request = checked(testing::small_pipeline_request(seed, {6, 4, 4}));
    const Rates rates(request);
    Predictor predictor = predictor_of(request);
    for (const auto& [bound, plan] : node_pipelines(rates, std::numeric_limits<Seconds>::infinity())) {
      EXPECT_TRUE(test::no_faults(validate(plan, request.model, request.cluster))) << "seed " << seed;
      EXPECT_LE(bound, predictor.predict(plan).step) << "seed " << seed;
      EXPECT_EQ(stage_layers(plan.groups[0]).size(), 2u) << "one for each node";
      mixed += plan.groups[0].layers.front().experts[0][0].device !=
               plan.groups[0].layers.front().attention[0][0].device;
      ++plans;
    }
  }
  EXPECT_GT(plans, 100);
  EXPECT_GT(mixed, 10) << "experts beside the attention";
}

}  // namespace
}  // namespace hetermoe
