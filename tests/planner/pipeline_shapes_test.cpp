#include "hetermoe/planner/search/pipeline_shapes.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <numeric>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/plan/recompute.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/sim/memory.h"
#include "tests/support/more_requests.h"
#include "tests/support/nodes_of_eight.h"

// Pipelines of any depth: what is weighed, what it takes and what it needs.
namespace hetermoe {
namespace {

PlanRequest request_of(const std::string& model, const Cluster& cluster, i64 sequences) {
  PlanRequest request;
  request.model = load_model(model);
  request.cluster = cluster;
  request.seq_len = 4096;
  request.sequences = sequences;
  request.limits.max_microbatches = sequences;
  return request;
}

std::set<std::size_t> depths(const PipelineRanking& ranking) {
  std::set<std::size_t> all;
  for (const PipelineShape& shape : ranking.shapes) all.insert(shape.stages.size());
  return all;
}

constexpr Seconds kAnyShapeTime = 1e30;

TEST(PipelineShapes, HaveAsManyStagesAsDevicesAndLayersAllow) {
  const PlanRequest request = request_of("qwen3-30b-a3b", testing::nodes_of_eight({{"H100", 16}}), 64);
  const std::set<std::size_t> few = depths(rank_pipelines(Rates(request), kAnyShapeTime));
  for (const std::size_t stages : {2, 3, 4}) EXPECT_TRUE(few.contains(stages)) << stages;
  // 60 layers that only deep pipelines have room for.
  const PlanRequest large = request_of("deepseek-v2", testing::nodes_of_eight({{"H100", 64}}), 1024);
  const std::set<std::size_t> deep = depths(rank_pipelines(Rates(large), kAnyShapeTime));
  EXPECT_FALSE(deep.contains(2));
  EXPECT_TRUE(
      std::any_of(deep.begin(), deep.end(), [](std::size_t n) { return n >= 16 && (n & (n - 1)) != 0; }));
}

TEST(PipelineShapes, AreValidPlansOfAllLayersAndSequences) {
  for (const auto& [types, sequences] : std::vector<std::pair<std::vector<std::pair<std::string, i32>>, i64>>{
           {{{"H100", 24}}, 96}, {{{"H100", 16}, {"A100-80", 24}}, 90}, {{{"H100", 13}}, 50}}) {
    const PlanRequest request = request_of("qwen3-30b-a3b", testing::nodes_of_eight(types), sequences);
    const Rates rates(request);
    const PipelineRanking ranking = rank_pipelines(rates, kAnyShapeTime);
    ASSERT_GE(ranking.shapes.size(), 20U);
    for (std::size_t i = 0; i < ranking.shapes.size(); i += 1 + ranking.shapes.size() / 40) {
      const Plan plan = make_pipeline(rates, ranking.shapes[i]);
      EXPECT_EQ(validate(plan, request.model, request.cluster), std::vector<std::string>{});
      EXPECT_EQ(total_sequences(plan), sequences);
      EXPECT_EQ(stage_layers(plan.groups[0]), ranking.shapes[i].layers);
      EXPECT_EQ(overfilled_device(estimate_memory(plan, request.model), request.cluster), "");
    }
  }
}

/// Figures of a stage are those of its fullest device in the plan that is made of it.
void expect_needs_of_plans(const PlanRequest& request) {
  const Rates rates(request);
  const PipelineRanking ranking = rank_pipelines(rates, kAnyShapeTime);
  ASSERT_FALSE(ranking.shapes.empty());
  for (const PipelineShape& shape : ranking.shapes) {
    Plan plan = make_pipeline(rates, shape);
    settle_homes(request, plan);
    const std::vector<Bytes> memory = estimate_memory(plan, request.model, {}, {}, request.routing.margin);
    const StageCosts costs(rates, shape.order, shape.stages);
    LayerRun run;
    for (std::size_t s = 0; s < shape.stages.size(); ++s, run.first += run.count) {
      run.stage = static_cast<i64>(s), run.count = shape.layers[s];
      Bytes fullest = 0;
      for (const Share& share : plan.groups[0].layers[idx(run.first)].attention[0])
        fullest = std::max(fullest, memory[idx(share.device)]);
      const Bytes need = costs.memory(run, shape.recompute[s]);
      EXPECT_NEAR(fullest / need, 1, 0.01) << "stage " << s << " of " << shape.stages.size();
      // Of a last group that differs, the others do not know how many devices share what they reduce.
      EXPECT_LE(fullest, need * (1 + (shape.rest.empty() ? 1e-9 : 2e-3)))
          << "stage " << s << " of " << shape.stages.size();
    }
  }
}

TEST(PipelineShapes, NeedWhatTheirPlansNeed) {
  expect_needs_of_plans(
      request_of("deepseek-v2", testing::nodes_of_eight({{"H100", 64}, {"A100-80", 64}}), 512));
}

TEST(PipelineShapes, NeedWhatTheirPlansNeedWithHosts) {
  Cluster cluster = testing::nodes_of_eight({{"H100", 16}, {"A100-80", 16}});
  for (Node& node : cluster.nodes) node.host = NodeHost{.memory_gib = 2000};
  PlanRequest request = request_of("deepseek-v2", cluster, 128);
  request.limits.shard_optimizer = false;
  for (const HostUse use : kHostUses) {
    SCOPED_TRACE(fmt::format("{}", fmt::join(offload_entries(use), ",")));
    request.limits.host_use = use;
    expect_needs_of_plans(request);
  }
}

/// Early stages have most microbatches in flight: later ones recompute less.
TEST(PipelineShapes, RecomputeAsMuchAsEachStageHasToAlone) {
  const PlanRequest request = request_of("deepseek-v2", testing::nodes_of_eight({{"H100", 128}}), 512);
  const Rates rates(request);
  const PipelineRanking ranking = rank_pipelines(rates, kAnyShapeTime);
  i64 differ = 0;
  for (const PipelineShape& shape : ranking.shapes) {
    const StageCosts costs(rates, shape.order, shape.stages);
    LayerRun run;
    for (std::size_t s = 0; s < shape.stages.size(); ++s, run.first += run.count) {
      run.stage = static_cast<i64>(s), run.count = shape.layers[s];
      const RunRecompute how = shape.recompute[s];
      EXPECT_TRUE(costs.fits(run, how));
      for (const Recompute other :
           {Recompute::kOff, Recompute::kSelect, Recompute::kAhead, Recompute::kResend}) {
        const RunRecompute all = RunRecompute::all(other);
        EXPECT_TRUE(!costs.fits(run, all) || costs.time(run, all) >= costs.time(run, how));
      }
    }
    differ += shape.recompute.front().rest != shape.recompute.back().rest;
    const Plan plan = make_pipeline(rates, shape);
    for (std::size_t s = 0, l = 0; s < shape.stages.size(); ++s) {
      for (i64 i = 0; i < shape.layers[s]; ++i, ++l)
        EXPECT_EQ(recompute_of(plan, 0, static_cast<i32>(l)), shape.recompute[s].of(i));
    }
  }
  EXPECT_GT(differ, 0);
}

TEST(PipelineShapes, TakeAboutWhatTheSimulatorSays) {
  for (const char* model : {"mixtral-8x7b", "qwen3-30b-a3b", "deepseek-v2"}) {
    const PlanRequest request = request_of(model, testing::nodes_of_eight({{"H100", 64}}), 1024);
    const Rates rates(request);
    Predictor predictor(request.model, request.cluster);
    i64 looked_at = 0;
    for (const PipelineShape& shape : rank_pipelines(rates, kAnyShapeTime).shapes) {
      // Stages that share nodes unevenly meet on ports in ways that no closed form follows.
      if (8 % shape.stages[0].count != 0 || shape.stages.front() != shape.stages.back()) continue;
      // Nor does one say what groups that differ take to reduce their gradients.
      if (!shape.rest.empty()) continue;
      if (++looked_at > 12) break;
      const Seconds step = predictor.predict(make_pipeline(rates, shape)).step;
      EXPECT_NEAR(shape.estimate / step, 1, 0.15)
          << model << ", " << shape.stages.size() << " stages in " << shape.order.groups << " groups";
    }
    EXPECT_GE(looked_at, 1) << model;
  }
}

/// Links that differ from node to node, and inside of nodes: 0.2 to 70 GB/s.
TEST(PipelineShapes, KnowWhichLinksStagesSendOver) {
  for (const u64 seed : {1, 5, 53}) {
    PlanRequest request = testing::uneven_request(seed);
    request.limits.max_microbatches = request.sequences;
    const Rates rates(request);
    Predictor predictor = predictor_of(request);
    const std::vector<PipelineShape> shapes = rank_pipelines(rates, kAnyShapeTime).shapes;
    for (std::size_t i = 0; i < std::min<std::size_t>(10, shapes.size()); ++i) {
      const Seconds step = predictor.predict(make_pipeline(rates, shapes[i])).step;
      EXPECT_GT(step, 0.7 * shapes[i].estimate) << "seed " << seed << ", shape " << i;
      EXPECT_LT(step, 1.3 * shapes[i].estimate) << "seed " << seed << ", shape " << i;
    }
  }
}

TEST(PipelineShapes, GiveNewerDevicesMoreLayers) {
  const PlanRequest request =
      request_of("mixtral-8x7b", testing::nodes_of_eight({{"H100", 64}, {"A100-80", 64}}), 512);
  const Rates rates(request);
  for (const PipelineShape& shape : rank_pipelines(rates, kAnyShapeTime).shapes) {
    if (shape.stages.front().cls == shape.stages.back().cls) continue;
    std::map<std::string, double> layers, stages;
    for (std::size_t s = 0; s < shape.stages.size(); ++s) {
      const std::string& type = request.cluster.types[idx(rates.classes()[shape.stages[s].cls].type)].name;
      layers[type] += real(shape.layers[s]), ++stages[type];
    }
    EXPECT_GT(layers["H100"] / stages["H100"], 2 * layers["A100-80"] / stages["A100-80"]);
    return;  // the fastest says it
  }
  FAIL() << "no pipeline of both types";
}

TEST(PipelineShapes, NearestMissLacksLessThanEveryOther) {
  PlanRequest request = request_of("deepseek-v2", testing::nodes_of_eight({{"H100", 48}}), 256);
  const Rates rates(request);
  EXPECT_TRUE(rank_pipelines(rates, kAnyShapeTime).shapes.empty());
  const std::optional<PipelineMiss> miss = nearest_pipeline(rates);
  ASSERT_TRUE(miss.has_value());
  EXPECT_GT(miss->need, miss->usable);
  // With as much memory as is missing, and a little, there is a plan.
  request.cluster.types[0].memory_gib += 1.01 * (miss->need - miss->usable) / kGiB / kUsableMemory;
  EXPECT_FALSE(rank_pipelines(Rates(request), kAnyShapeTime).shapes.empty());
}

// --- by hand ---

/// Elements of the attention part of a layer, and of one expert.
double attention_elements(const ModelConfig& m, i64 layer) {
  const auto h = real(m.hidden), heads = real(m.num_heads), head = real(m.head_dim);
  double sum = 2 * h;  // norms
  if (m.kv_lora_rank > 0) {
    const auto q = real(m.q_lora_rank), kv = real(m.kv_lora_rank), rope = real(m.qk_rope_dim);
    sum += h * q + q + q * heads * head + h * (kv + rope) + kv +
           kv * heads * (real(m.qk_nope_dim) + real(m.v_dim)) + heads * real(m.v_dim) * h;
  } else {
    sum += h * heads * head * 2 + h * real(m.num_kv_heads) * head * 2 + 2 * head;
  }
  if (m.is_moe(layer))
    return sum + h * real(m.num_experts) + 3 * h * real(m.num_shared_experts * m.expert_hidden);
  return sum + 3 * h * real(m.dense_hidden);
}

/// States of 18 bytes each, of which masters and moments of 12 are shared by the devices that hold the same;
/// and what backward starts from: a row of input per layer, ids and weights of k experts, in every microbatch
/// that is under way.
struct Tally {
  Bytes states = 0, inputs = 0, rows = 0;
};

Tally tally(const Plan& plan, const ModelConfig& m, std::size_t stage) {
  const Group& group = plan.groups[0];
  const std::vector<i64> layers = stage_layers(group);
  const auto first =
      std::accumulate(layers.begin(), layers.begin() + static_cast<std::ptrdiff_t>(stage), i64{0});
  const ShareRow& row = group.layers[idx(first)].attention[0];
  const auto devices = real(row.size()), groups = real(plan.groups.size());
  const double owned = real(m.num_experts) / devices;
  const Bytes alike = 6 + 12 / (groups * devices), alone = 6 + 12 / groups;
  const auto windows = static_cast<i64>(layers.size() - stage);
  const double in_flight =
      real(std::min<i64>(windows * std::max(1, plan.window), static_cast<i64>(group.microbatches.size())));
  const double tokens = real(row[0].sequences * plan.seq_len);
  Tally out;
  for (i64 l = first; l < first + layers[stage]; ++l) {
    out.states += attention_elements(m, l) * alike;
    out.inputs += in_flight * tokens * 2 * real(m.hidden);
    if (!m.is_moe(l)) continue;
    out.states += owned * 3 * real(m.hidden * m.expert_hidden) * alone;
    out.inputs += in_flight * tokens * real(m.top_k) * 12;
    // Of each token one row, where one of its experts is: k drawings without putting back.
    double miss = 1;
    for (i64 k = 0; k < m.top_k; ++k) miss *= 1 - owned / real(m.num_experts - k);
    if (!resends_rows(recompute_of(plan, 0, static_cast<i32>(l))))
      out.rows += in_flight * tokens * devices * (1 - miss) * 2 * real(m.hidden);
  }
  const double words = real(m.vocab) * real(m.hidden);
  if (stage == 0) out.states += words * alike;
  if (stage + 1 == layers.size()) out.states += (words + real(m.hidden)) * alike;
  return out;
}

/// Of all devices, when the plan runs in the simulator; enough microbatches to fill the pipeline.
std::vector<MemoryPeak> simulated_peaks(const PlanRequest& request, const Plan& plan) {
  const std::vector<Repeat> repeated = repeated_windows(plan);
  const Plan shorter = repeated.empty() ? plan : without_repeats(plan, repeated, 0);
  const ExpectedRouting routing(request.model);
  const FoldedStep step = make_folded_step(
      shorter, request.model, request.cluster,
      *make_cost(request.model, request.cluster, shorter, load_profiles(request.cluster), request.software),
      routing);
  Simulator simulator;
  return peak_memory(step.schedule, simulator.run(step.schedule, step.costs), *step.placement, request.model,
                     request.cluster, routing);
}

void expect_tally(const PlanRequest& request, const Plan& plan) {
  const std::vector<Bytes> bound = estimate_memory(plan, request.model);
  const std::vector<MemoryPeak> peaks = simulated_peaks(request, plan);
  std::size_t layer = 0, stage = 0;
  for (const i64 layers : stage_layers(plan.groups[0])) {
    const std::string where = fmt::format("{}, stage {}, recompute {}, window {}", request.model.name, stage,
                                          recompute_text(plan), plan.window);
    const std::size_t device = idx(plan.groups[0].layers[layer].attention[0][0].device);
    const MemoryUse& use = peaks[device].use;
    const Tally by_hand = tally(plan, request.model, stage);
    EXPECT_NEAR(use.state() / by_hand.states, 1, 0.01) << where;
    EXPECT_LE(by_hand.states + by_hand.inputs + by_hand.rows, bound[device]) << where;
    EXPECT_LE(use.total(), 1.03 * bound[device]) << where;
    EXPECT_GE(use.total(), 0.6 * bound[device]) << where;
    layer += idx(layers), ++stage;
  }
}

TEST(PipelineMemory, IsWhatATallyByHandSays) {
  for (const char* model : {"qwen3-30b-a3b", "deepseek-v2"}) {
    const bool large = std::string(model) == "deepseek-v2";
    const PlanRequest request =
        request_of(model, testing::nodes_of_eight({{"H100", large ? 128 : 16}}), large ? 512 : 64);
    const Rates rates(request);
    std::set<std::tuple<Recompute, Recompute, i32, std::size_t>> seen;
    for (const PipelineShape& shape : rank_pipelines(rates, kAnyShapeTime).shapes) {
      if (request.model.num_experts % shape.stages[0].count != 0 ||
          shape.stages.front() != shape.stages.back())
        continue;
      if (shape.order.largest % shape.stages[0].count != 0 ||
          request.sequences % shape.order.microbatches != 0)
        continue;
      const auto kind = std::tuple(shape.recompute.front().first, shape.recompute.back().rest,
                                   shape.order.window, shape.stages.size());
      if (seen.size() < 8 && seen.insert(kind).second) expect_tally(request, make_pipeline(rates, shape));
    }
    EXPECT_GE(seen.size(), 3U) << model;
  }
}

}  // namespace
}  // namespace hetermoe
