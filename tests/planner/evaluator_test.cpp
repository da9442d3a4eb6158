#include "hetermoe/planner/search/evaluator.h"

#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/sketches.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

constexpr std::size_t kSketches = 20;

/// Two nodes of A100 and two of L40S with a deep model, which is extrapolated from its first layers.
PlanRequest deep_request() {
  PlanRequest request;
  request.model = load_model("qwen3-30b-a3b");
  request.cluster = testing::nodes_of_eight({{"A100-80", 16}, {"L40S", 16}});
  request.seq_len = 4096, request.sequences = 138;
  return checked(request);
}

std::vector<RankedSketch> first_sketches(const Rates& rates) {
  std::vector<RankedSketch> sketches = rank_sketches(rates).sketches;
  sketches.resize(std::min(sketches.size(), kSketches));
  return sketches;
}

TEST(Evaluator, ThePlanThatLeadsIsSimulatedInAllLayers) {
  PlanRequest request = deep_request();
  request.limits.simulation_budget = i64{1} << 40;
  Evaluator evaluator(request);
  ASSERT_TRUE(evaluator.shortens());
  Predictor whole(request.model, request.cluster, request.software);
  int extrapolated = 0;
  for (const RankedSketch& ranked : first_sketches(evaluator.rates())) {
    const i64 index = evaluator.evaluate(ranked.sketch);
    if (index < 0) continue;
    extrapolated += evaluator.at(index).exact ? 0 : 1;
    const i64 best = evaluator.best();
    EXPECT_TRUE(evaluator.at(best).exact);
    EXPECT_DOUBLE_EQ(evaluator.step_of(best), whole.predict(evaluator.plan_of(best)).step);
  }
  EXPECT_GT(extrapolated, 0) << "others are not";
}

/// Groups that are alike are weighed by one of them, but replicas of all share a sharded optimizer.
TEST(Evaluator, TheMemoryOfOneGroupOfAKindIsThatOfAll) {
  const PlanRequest request = deep_request();
  const Rates rates(request);
  int several = 0;
  for (const RankedSketch& ranked : first_sketches(rates)) {
    const std::vector<Group> kinds = realize_kinds(rates, ranked.sketch, 1);
    if (kinds.size() == ranked.sketch.groups.size() || !ranked.sketch.shard_optimizer) continue;
    ++several;
    const Plan all = realize(rates, ranked.sketch);
    Plan some = all;
    some.groups = kinds;
    const std::vector<Bytes> memory = estimate_memory(all, request.model);
    const std::vector<Bytes> of_kinds = estimate_memory(some, request.model, groups_of_kinds(ranked.sketch));
    for (const Group& kind : kinds) {
      for (const DeviceId d : kind.devices) EXPECT_DOUBLE_EQ(of_kinds[idx(d)], memory[idx(d)]) << d;
    }
  }
  EXPECT_GT(several, 0);
}

TEST(Evaluator, WithoutBudgetToConfirmItStaysExtrapolated) {
  PlanRequest request = deep_request();
  request.limits.simulation_budget = 60'000;  // eight times as much as a plan in the first layers
  Evaluator evaluator(request);
  for (const RankedSketch& ranked : first_sketches(evaluator.rates())) evaluator.evaluate(ranked.sketch);
  ASSERT_GE(evaluator.best(), 0);
  EXPECT_FALSE(evaluator.at(evaluator.best()).exact);
}

/// What all layers take beyond what a few of them promise is alike for neighbours of a plan.
TEST(Evaluator, WhatIsComparedWithAConfirmedPlanIsCorrectedLikeIt) {
  const PlanRequest request = deep_request();
  Evaluator evaluator(request);
  ShortModel first_layers(request.model, request.cluster, request.software);
  const auto extrapolated = [&](i64 index) {
    Plan plan = evaluator.plan_of(index);
    return first_layers.predict_within(i64{1} << 40, plan)->step;
  };
  const std::vector<RankedSketch> sketches = first_sketches(evaluator.rates());
  const i64 start = evaluator.evaluate(sketches.front().sketch);
  ASSERT_GE(start, 0);
  const double ratio = evaluator.step_of(start) / extrapolated(start);
  EXPECT_GT(std::abs(ratio - 1), 0.001) << "nothing to correct";
  evaluator.start_from(start);
  int corrected = 0;
  for (const RankedSketch& ranked : sketches) {
    const i64 index = evaluator.evaluate(ranked.sketch);
    if (evaluator.current() != start) break;
    if (index < 0 || evaluator.at(index).exact) continue;
    EXPECT_NEAR(evaluator.step_of(index), ratio * extrapolated(index), 1e-9);
    ++corrected;
  }
  EXPECT_GT(corrected, 0);
}

}  // namespace
}  // namespace hetermoe
