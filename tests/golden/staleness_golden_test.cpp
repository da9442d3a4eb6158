#include <gtest/gtest.h>

#include <algorithm>

#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/simulator.h"

// Worked examples of an optimizer that works while the next step computes.
namespace hetermoe::test {
namespace {

/// Attention parts of layers take 2 seconds forward and 4 backward, the update of a state `update`; nothing
/// else takes time.
struct UpdateCost : CostModel {
  Seconds update = 0;

  Seconds compute(const ComputeWork& work) const override {
    if (work.op.kind == OpKind::kUpdate) return update;
    if (work.op.kind != OpKind::kAttention) return 0;
    return work.op.phase == Phase::kBackward ? 4 : 2;
  }
  TransferCost transfer(const TransferWork&) const override { return {}; }
};

struct Simulated {
  Seconds step = 0;   ///< what a step adds to a long run
  Seconds alone = 0;  ///< of one step between two barriers
};

/// Two layers on one device, all on its host: 12 seconds of computing and six states to update.
Simulated simulated(i64 staleness, Seconds update) {
  ModelConfig model = load_model("tiny");
  model.num_layers = 2;
  model.dense_layer.assign(2, false);
  Cluster cluster = load_cluster("one");
  cluster.nodes[0].host = NodeHost{.memory_gib = 64};
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = request.microbatches = 1;
  Plan plan = find_strategy("single").make(model, cluster, request);
  offload(plan, model, cluster, {"all"}, "test");
  StepOptions options;
  options.staleness = staleness;
  const Placement placement(plan, model, options);
  const Schedule schedule = build_schedule(placement);
  EXPECT_EQ(schedule.states.size(), 6u);
  EXPECT_EQ(validate(schedule, plan, model, options), std::vector<std::string>{});
  UpdateCost cost;
  cost.update = update;
  const OpTimes times = simulate(schedule, placement, model, cluster, cost, ExpectedRouting(model));
  Simulator simulator;
  return {
      times.step,
      simulator.run(schedule, price(schedule, placement, model, cluster, cost, ExpectedRouting(model))).step};
}

TEST(StalenessGolden, TheOptimizerHidesBehindTheNextStep) {
  const Simulated plain = simulated(0, 1), lagging = simulated(1, 1);
  EXPECT_DOUBLE_EQ(plain.step, 12 + 6);
  EXPECT_DOUBLE_EQ(lagging.step, 12);
  // One barrier between steps, in the place of what states wait for, would cost all of it.
  EXPECT_DOUBLE_EQ(lagging.alone, 12 + 6);
}

TEST(StalenessGolden, AnOptimizerThatTakesLongerThanAStepBindsIt) {
  EXPECT_DOUBLE_EQ(simulated(0, 3).step, 12 + 18);
  EXPECT_DOUBLE_EQ(simulated(1, 3).step, 18);
}

/// In the middle of a long run the steps are alike.
TEST(StalenessGolden, TimesBeginAtZero) {
  OpTimes all;
  Schedule schedule;
  schedule.ops.resize(2);
  for (i32 step = 0; step < kSteadySteps; ++step) {
    for (const Seconds start : {10.0 * step + 1, 10.0 * step + 4}) {
      all.start.push_back(start);
      all.end.push_back(start + 8);
    }
  }
  const OpTimes times = steady_step(schedule, all);
  EXPECT_EQ(times.start, (std::vector<Seconds>{0, 3}));
  EXPECT_EQ(times.end, (std::vector<Seconds>{8, 11}));
  EXPECT_DOUBLE_EQ(times.step, 10);
}

}  // namespace
}  // namespace hetermoe::test
