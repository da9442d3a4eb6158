#include "hetermoe/planner/search/layer_residence.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/search.h"
#include "tests/support/strategy_plans.h"

// Layers of a plan that recompute, keep or reload what backward needs.
namespace hetermoe {
namespace {

PlanRequest request_of(const char* model, i64 sequences, HostUse use) {
  PlanRequest request;
  request.model = load_model(model);
  request.cluster = load_cluster("rtx4090x8");
  request.dtype = Dtype::kBf16;
  request.seq_len = 2048;
  request.sequences = sequences;
  request.limits.host_use = use;
  request.limits.shard_optimizer = use == HostUse::kNone;
  return checked(request);
}

/// Recomputes all layers.
Plan plan_of(const PlanRequest& request, const char* strategy, i64 stages) {
  StrategyRequest ask;
  ask.seq_len = request.seq_len;
  ask.sequences = request.sequences;
  ask.microbatches = 16;
  if (stages > 0) ask.stages = stages;
  Plan plan = find_strategy(strategy).make(request.model, request.cluster, ask);
  plan.recompute = Recompute::kLocal;
  take_dtypes(plan, blank_plan(request, plan.recompute));
  settle_homes(request, plan);
  return plan;
}

i64 first_on_devices(const Plan& plan) {
  const std::vector<LayerPlacement>& layers = plan.groups[0].layers;
  return std::find_if(layers.begin(), layers.end(),
                      [](const LayerPlacement& l) { return l.saved == Residence::kDevice; }) -
         layers.begin();
}

/// As many of the last layers as have room, and not one more.
TEST(LayerResidence, GivesTheRoomThatIsLeftToTheLastLayers) {
  const PlanRequest request = request_of("qwen3-30b-a3b", 1024, HostUse::kAllSaved);
  Evaluator evaluator(request);
  const Plan plan = plan_of(request, "ep", 0);
  ASSERT_TRUE(evaluator.has_room(plan));
  for (const KeptLayer kept : {KeptLayer{}, KeptLayer{Recompute::kOff}}) {
    std::optional<Plan> more = with_last_layers(evaluator, plan, kept);
    ASSERT_TRUE(more.has_value());
    EXPECT_TRUE(evaluator.has_room(*more));
    const i64 first = first_on_devices(*more);
    ASSERT_GT(first, 0) << "all have room: the case shows nothing";
    ASSERT_LT(first, 48);
    for (i64 l = 0; l < 48; ++l) {
      const LayerPlacement& layer = more->groups[0].layers[idx(l)];
      EXPECT_EQ(layer.saved, l < first ? Residence::kHost : Residence::kDevice) << l;
      EXPECT_EQ(recompute_of(*more, 0, static_cast<i32>(l)),
                l < first ? Recompute::kLocal : kept.recompute.value_or(Recompute::kLocal))
          << l;
    }
    LayerPlacement& next = more->groups[0].layers[idx(first - 1)];
    next.saved = Residence::kDevice;
    if (kept.recompute) next.recompute = kept.recompute;
    EXPECT_FALSE(evaluator.has_room(*more)) << "one more";
  }
}

/// Chosen by layer, a step is no slower than the best one whose layers do all the same, and here faster.
TEST(LayerResidence, IsNoSlowerThanTheSameInAllLayers) {
  PlanRequest request = request_of("olmoe-1b-7b", 64, HostUse::kNone);
  request.seq_len = 4096;
  request.routing.margin = 1;
  const PlanResult result = search_plans(request);
  ASSERT_TRUE(result.feasible());
  const Plan& plan = result.best().plan;
  EXPECT_EQ(overfilled_device(result.best().memory, request.cluster), "");
  EXPECT_EQ(validate(plan, request.model, request.cluster), std::vector<std::string>{});
  Predictor predictor = predictor_of(request);
  Seconds least = 1e9;
  for (const Recompute recompute :
       {Recompute::kOff, Recompute::kSelect, Recompute::kLocal, Recompute::kResend}) {
    Plan uniform = plan;
    uniform.recompute = recompute;
    for (Group& group : uniform.groups)
      for (LayerPlacement& layer : group.layers) layer.recompute.reset();
    if (!overfilled_device(estimate_memory(uniform, request.model), request.cluster).empty()) continue;
    least = std::min(least, predictor.predict(uniform).step);
  }
  EXPECT_LT(result.best().prediction.step, 0.9 * least);
}

/// Stages of a pipeline have room of their own.
TEST(LayerResidence, GoesByStageInPipelines) {
  const PlanRequest request = request_of("qwen3-30b-a3b", 128, HostUse::kAllSaved);
  Evaluator evaluator(request);
  const Plan plan = plan_of(request, "pp-ep", 4);
  ASSERT_TRUE(evaluator.has_room(plan));
  const std::optional<Plan> more = with_last_layers(evaluator, plan, {Recompute::kOff});
  ASSERT_TRUE(more.has_value());
  EXPECT_TRUE(evaluator.has_room(*more));
  std::vector<i64> off;  // [stage]
  i64 l = 0;
  for (const i64 layers : stage_layers(plan.groups[0])) {
    off.push_back(0);
    for (i64 i = 0; i < layers; ++i, ++l)
      off.back() += recompute_of(*more, 0, static_cast<i32>(l)) == Recompute::kOff;
  }
  EXPECT_GT(off.back(), off.front()) << "the last stage has fewest microbatches in flight";
}

}  // namespace
}  // namespace hetermoe
