#include "hetermoe/routing/plan_figures.h"

#include <gtest/gtest.h>

#include "hetermoe/routing/split_routing.h"
#include "tests/routing/golden_trace.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

/// Device 1 takes three times as long for every copy.
class TwoSpeeds : public CostModel {
 public:
  Seconds compute(const ComputeWork& work) const override {
    return 5 + (work.device == 1 ? 3 : 1) * work.copies;
  }
  TransferCost transfer(const TransferWork&) const override { return {}; }
};

TEST(PlanFigures, WeighCopiesBySpeedAndCountRowsBetweenNodes) {
  const ModelConfig model = test::make_model({.num_layers = 2, .num_experts = 4, .top_k = 2, .dense = {0}});
  const Cluster cluster = test::make_cluster({1, 1});
  StrategyRequest request;
  request.seq_len = 3;
  request.sequences = 2;
  const Plan plan = find_strategy("ep").make(model, cluster, request);
  const Placement placement(plan, model, {});
  const TwoSpeeds cost;
  EXPECT_EQ(expert_speeds(cost, placement, model, cluster, 0, 1, 10), (std::vector<double>{1e6, 333333}));
  PlanAnalyser analyser(cost, placement, model, cluster);
  analyser.add(TraceRouting(golden_header(), golden_step(), model, "trace"));
  const PlanFigures figures = analyser.finish();
  // 6 copies on the fast device, 4 on the slow one, which takes 12 where all together need 7.5.
  ASSERT_EQ(figures.layers.size(), 1u);
  EXPECT_NEAR(figures.layers[0].time_ratio.mean, 12 / 7.5, 1e-5);
  EXPECT_DOUBLE_EQ(figures.layers[0].rank_ratio.mean, 6.0 / 5);
  EXPECT_DOUBLE_EQ(figures.node_rows, 2.0 / 6);
  EXPECT_DOUBLE_EQ(figures.node_copies, 2.0 / 6);
  // Each device is a node, whose copies nobody else takes; together in one all could be divided.
  EXPECT_DOUBLE_EQ(figures.layers[0].node_ratio.mean, figures.layers[0].time_ratio.mean);
  const Cluster one_node = test::make_cluster({2});
  PlanAnalyser together(cost, placement, model, one_node);
  together.add(TraceRouting(golden_header(), golden_step(), model, "trace"));
  EXPECT_NEAR(together.finish().layers[0].time_ratio.mean, 12 / 7.5, 1e-5);
  EXPECT_NEAR(together.finish().layers[0].node_ratio.mean, 1, 1e-9);
}

/// What a run of the golden trace on two devices of one node says of its step.
struct WatchedStep {
  ModelConfig model = test::make_model({.num_layers = 2, .num_experts = 4, .top_k = 2, .dense = {0}});
  Cluster cluster = test::make_cluster({2});
  Plan plan;
  TraceRouting trace{golden_header(), golden_step(), model, "trace"};
  std::vector<std::vector<double>> counts = {{}, {4, 2, 2, 2}};

  WatchedStep() {
    StrategyRequest request;
    request.seq_len = 3;
    request.sequences = 2;
    plan = find_strategy("ep").make(model, cluster, request);
    plan.split_speeds = {3, 1};
    plan.guest_slots = 1;
  }
  StepRouting figures(CopySplit split) const {
    const Placement placement(plan, model, {});
    const SplitRouting routing(trace, cluster, split);
    const TwoSpeeds cost;
    RoutingWatch watch(cost, placement, model, cluster);
    return watch.of(counts, copies_of_devices(placement, routing, {0, 1}));
  }
};

TEST(RoutingWatch, CountsTheCopiesThatGuestsCompute) {
  const WatchedStep step;
  const Placement placement(step.plan, step.model, {});
  const SplitRouting lent(step.trace, step.cluster, CopySplit::kGuests);
  // An expert with two copies is lent to the fast device. Other devices' copies are left to who has them.
  const std::vector<std::vector<double>> all = {{0, 8}, {0, 2}}, one = {{}, {0, 2}};
  EXPECT_EQ(copies_of_devices(placement, lent, {0, 1}), all);
  EXPECT_EQ(copies_of_devices(placement, lent, {1}), one);
  const StepRouting shares = step.figures(CopySplit::kShares), guests = step.figures(CopySplit::kGuests);
  EXPECT_NEAR(shares.time_ratio.value(), 12 / 7.5, 1e-5);
  EXPECT_NEAR(guests.time_ratio.value(), 8 / 7.5, 1e-5);
  EXPECT_DOUBLE_EQ(shares.rank_ratio.value(), 6.0 / 5);
  EXPECT_DOUBLE_EQ(guests.rank_ratio.value(), 8.0 / 5);
  EXPECT_DOUBLE_EQ(shares.gini, guests.gini);
}

TEST(RoutingWatch, HasNoRatioWhereExpertsAreAtTheirTokens) {
  WatchedStep step;
  step.plan.guest_slots = 0;
  for (LayerPlacement& layer : step.plan.groups[0].layers) {
    for (ExpertOwners& owners : layer.experts) owners = {{0, 0.5}, {1, 0.5}};
    if (!layer.experts.empty()) layer.experts_at = ExpertsAt::kSources;
  }
  const StepRouting figures = step.figures(CopySplit::kShares);
  EXPECT_GT(figures.gini, 0);
  EXPECT_FALSE(figures.time_ratio);
  EXPECT_FALSE(figures.rank_ratio);
}

}  // namespace
}  // namespace hetermoe
