#include "hetermoe/cost/trained.h"

#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/cost/roofline.h"
#include "hetermoe/model/lora_targets.h"
#include "hetermoe/planner/planner.h"
#include "hetermoe/schedule/builder.h"
#include "hetermoe/sim/memory.h"
#include "tests/support/strategy_plans.h"

// Plans for runs that train a part of the model, or adapters.
namespace hetermoe::testing {
namespace {

Trained adapters_of(const ModelConfig& model, i64 rank, bool experts = true) {
  std::vector<std::string> targets;
  for (const ParamInfo& parameter : parameters(model)) {
    const bool of_experts = unit_of(model, parameter).part == UnitPart::kExperts;
    if (can_have_adapter(parameter) && (experts || !of_experts)) targets.push_back(parameter.name);
  }
  const auto lora = std::make_shared<const Lora>(make_lora(model, rank, 16, std::move(targets)));
  return {units_without(model, *lora), lora};
}

TEST(UsualLoraTargets, AreOfAttentionAndOfExpertsWhereThereAreSome) {
  EXPECT_EQ(usual_lora_targets(load_model("llama-3.1-8b")), std::vector<std::string>{"*.self_attn.*_proj*"});
  EXPECT_EQ(usual_lora_targets(load_model("mixtral-8x7b")),
            (std::vector<std::string>{"*.self_attn.*_proj*", "*.experts.*"}));
}

/// All but the attention parts.
Trained attention_alone(const ModelConfig& model) {
  Trained out;
  for (const Unit& unit : units(model)) {
    if (unit.part != UnitPart::kAttention) out.frozen.push_back(unit);
  }
  return out;
}

std::vector<MemoryPeak> peaks_of(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                                 const Trained& trained) {
  const Placement placement(plan, model, step_options(trained, model, model));
  const Schedule schedule = build_schedule(placement);
  const ExpectedRouting routing(model);
  const RooflineCost cost(model, cluster, plan);
  const OpTimes times = simulate(schedule, placement, model, cluster, cost, routing);
  return peak_memory(schedule, times, placement, model, cluster, routing);
}

ModelConfig deep_demo() {
  ModelConfig model = load_model("demo");
  model.num_layers = 8;
  model.dense_layer.assign(8, false);
  return model;
}

StrategyRequest some_step() {
  StrategyRequest request = small_step();
  request.seq_len = 256;
  request.sequences = 16;
  request.microbatches = 8;
  return request;
}

/// The bound is as far above what a simulated step needs as it is where the whole model is trained. It
/// differs by the bytes of the states, and by at most what the sum of a layer's gradients takes besides them.
TEST(Trained, TheBoundOfMemoryFollowsWhatIsTrained) {
  const ModelConfig model = deep_demo();
  const ParamCounts counts = count_parameters(model);
  const Cluster cluster = load_cluster("demo");
  for (const Trained& trained :
       {adapters_of(model, 4), adapters_of(model, 4, false), attention_alone(model)}) {
    const TrainedShares shares(trained, model);
    for (NamedPlan& named : strategy_plans(model, cluster, some_step())) {
      use_dtype(named.plan, Dtype::kBf16);
      const std::vector<Bytes> whole = estimate_memory(named.plan, model);
      const std::vector<Bytes> bound = estimate_memory(named.plan, model, {}, shares);
      const std::vector<MemoryPeak> peaks_whole = peaks_of(named.plan, model, cluster, {});
      const std::vector<MemoryPeak> peaks = peaks_of(named.plan, model, cluster, trained);
      for (std::size_t d = 0; d < bound.size(); ++d) {
        if (bound[d] <= 0) continue;
        const std::string where = fmt::format("{} device {}", named.name, d);
        EXPECT_LE(bound[d], whole[d] * 1.001) << where;
        const double usual = std::max(1.0, peaks_whole[d].use.total() / whole[d]);
        EXPECT_LE(peaks[d].use.total() / bound[d], 1.12 * usual) << where;
        const Bytes saved = peaks_whole[d].use.state() - peaks[d].use.state();
        // A device of a depth group may have nothing but attention parts.
        const bool all_trained = !shares.adapts() && named.name.starts_with("af-pipe");
        EXPECT_GT(saved, all_trained ? -1 : 0) << where;
        if (!shares.adapts()) {
          const Bytes summed =
              reduction_bytes(real(counts.expert * model.num_experts), 2, 4, WireReduce::kFp32);
          EXPECT_GE(whole[d] - bound[d], 0.98 * saved) << where;
          EXPECT_LE(whole[d] - bound[d], 1.02 * saved + summed) << where;
        }
      }
    }
  }
}

TEST(Trained, StatesOfAdaptersAreWeightsAndWhatIsTrained) {
  const ModelConfig model = load_model("tiny");
  const Trained trained = adapters_of(model, 4);
  const TrainedShares shares(trained, model);
  const StateBytes each = state_bytes_per_parameter(2);
  const Unit expert{0, UnitPart::kExperts, 1};
  const double numbers = real(trained.lora->numbers_of(expert)), all = real(num_parameters(model, expert));
  const StateBytes got = shares.of(each, UnitPart::kExperts, 0);
  EXPECT_NEAR(got.total() * all, 2 * (all + numbers) + 16 * numbers, 1e-6);
  EXPECT_EQ(shares.of(each, UnitPart::kEmbed, -1).total(), 2);
  EXPECT_TRUE(TrainedShares().all());
  EXPECT_EQ(TrainedShares().of(each, UnitPart::kExperts, 0).total(), 18);
}

PlanRequest request_of(const std::string& model, const std::string& cluster) {
  PlanRequest request;
  request.model = load_model(model);
  request.cluster = load_cluster(cluster);
  request.seq_len = 1024;
  request.sequences = 16;
  request.dtype = Dtype::kFp16;
  return request;
}

/// Mixtral 8x7B: 93 GB in fp16, 840 GB with all that training keeps.
TEST(Trained, AdaptersFitWhereTheWholeModelDoesNot) {
  PlanRequest request = request_of("mixtral-8x7b", "o1");
  request.limits.offload = false;
  const PlanResult whole = find_plan(request);
  request.trained = adapters_of(request.model, 8);
  const PlanResult adapters = find_plan(request);
  EXPECT_FALSE(whole.feasible());
  ASSERT_TRUE(adapters.feasible()) << adapters.infeasible;
  const Plan& plan = adapters.best().plan;
  EXPECT_FALSE(shards_weights(plan));
  const std::vector<MemoryPeak> peaks = peaks_of(plan, request.model, request.cluster, request.trained);
  for (std::size_t d = 0; d < peaks.size(); ++d) {
    const DeviceType& type = request.cluster.type_of(static_cast<DeviceId>(d));
    EXPECT_LE(peaks[d].use.total(), usable_memory(type)) << d;
  }
  // What the best plan is said to take is what such a step takes.
  Predictor predictor = predictor_of(request);
  EXPECT_NEAR(adapters.best().prediction.step, predictor.predict(plan).step,
              adapters.best().extrapolated ? 0.05 * adapters.best().prediction.step : 1e-9);
}

TEST(Trained, AStepOfAdaptersIsPredictedToTakeLess) {
  PlanRequest request = request_of("olmoe4", "o1");
  const PlanResult whole = find_plan(request);
  ASSERT_TRUE(whole.feasible()) << whole.infeasible;
  for (const Trained& trained : {adapters_of(request.model, 8), attention_alone(request.model)}) {
    request.trained = trained;
    const PlanResult part = find_plan(request);
    ASSERT_TRUE(part.feasible()) << part.infeasible;
    EXPECT_LT(part.best().prediction.step, whole.best().prediction.step);
    // Never worse than the plan for the whole model.
    Predictor predictor = predictor_of(request);
    EXPECT_LE(part.best().prediction.step, 1.02 * predictor.predict(whole.best().plan).step);
  }
}

}  // namespace
}  // namespace hetermoe::testing
