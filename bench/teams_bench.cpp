// How much faster teams with expert parallelism are than tensor parallelism, beside what MegaScale-MoE
// published (arXiv 2505.11432): Internal-352B on 240 and 720 H800, in pipelines of 15 stages of a node each.
// Everything printed here is simulated, in bf16. Usage: teams_bench [MICROBATCHES], of which a step is
// simulated before it is extended [45].
#include <cstdlib>
#include <iostream>
#include <optional>

#include "bench/document.h"
#include "hetermoe/base/index.h"
#include "hetermoe/cost/measured.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/planner/strategies/tensor_parallel.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe {
namespace {

constexpr i64 kTeam = 8, kStages = 15, kSeqLen = 8192, kSequences = 720;

ModelConfig internal_352b() {
  ModelConfig model = load_model("mixtral-8x7b");
  model.name = "internal-352b";
  model.num_layers = 60, model.dense_layer.assign(60, false);
  model.num_experts = 32, model.top_k = 3, model.vocab = 65536;
  return model;
}

/// NVLink of 400 GB/s in both directions together, and a port of 400 Gbit/s for each device.
Cluster h800(i64 nodes) {
  Cluster cluster = load_cluster("h800-16x8");
  cluster.nodes.resize(1);
  cluster.devices.resize(kTeam);
  const Node node = cluster.nodes[0];
  for (i64 n = 1; n < nodes; ++n) {
    cluster.nodes.push_back(node);
    cluster.nodes.back().name = fmt::format("node{}", n);
    for (i64 d = 0; d < kTeam; ++d) {
      cluster.devices.push_back(cluster.devices[idx(d)]);
      cluster.devices.back().node = static_cast<NodeId>(n);
    }
  }
  return cluster;
}

enum class Exchanges { kOfTeams, kTensorParallel, kFree };

struct Levers {
  const char* name;
  Exchanges exchanges;
  Recompute recompute;
  WeightGradients weight_gradients;
  i32 window;     ///< microbatches that go through a stage together
  i32 tiles = 0;  ///< of experts: see OpCosts
};

class Bench {
 public:
  explicit Bench(i64 devices)
      : replicas_(devices / (kStages * kTeam)), model_(internal_352b()), cluster_(h800(devices / kTeam)) {}

  /// Of a whole step. Steps of pipelines grow evenly with microbatches, so two short ones tell the long one.
  Seconds step(const Levers& levers, i64 microbatches) {
    const i64 all = kSequences / replicas_;
    const Seconds some = simulated(levers, microbatches), more = simulated(levers, 2 * microbatches);
    return some + (more - some) * real(all - microbatches) / real(microbatches);
  }
  Bytes memory(const Levers& levers) {
    const std::vector<Bytes> all = estimate_memory(plan_of(levers, 2 * kStages), model_);
    return *std::max_element(all.begin(), all.end());
  }

 private:
  Plan plan_of(const Levers& levers, i64 microbatches) const {
    std::optional<Plan> plan;
    for (i64 r = 0; r < replicas_; ++r) {
      StrategyRequest request;
      request.seq_len = kSeqLen;
      request.sequences = request.microbatches = microbatches;
      request.stages = kStages, request.team = {kTeam}, request.window = levers.window;
      request.dtype = Dtype::kBf16;
      for (i64 d = 0; d < kStages * kTeam; ++d)
        request.attention.push_back(static_cast<DeviceId>(r * kStages * kTeam + d));
      Plan one = find_strategy("pp-ep").make(model_, cluster_, request);
      if (plan)
        plan->groups.push_back(std::move(one.groups[0]));
      else
        plan = std::move(one);
    }
    plan->recompute = levers.recompute, plan->weight_gradients = levers.weight_gradients;
    plan->shard_optimizer = true;
    plan->dtype.assign(cluster_.devices.size(), Dtype::kBf16);
    plan->wire_forward = plan->wire_backward = wire_of(Dtype::kBf16);
    return *plan;
  }

  Seconds simulated(const Levers& levers, i64 microbatches) const {
    const Plan plan = plan_of(levers, microbatches);
    const std::vector<std::string> faults = validate(plan, model_, cluster_);
    if (!faults.empty()) fail<ConfigError>("teams_bench", "{}", faults[0]);
    const Placement placement(plan, model_, StepOptions{});
    std::unique_ptr<CostModel> cost = make_cost(model_, cluster_, plan, {});
    if (levers.exchanges != Exchanges::kOfTeams)
      cost = std::make_unique<TensorParallelCost>(std::move(cost), model_, cluster_, plan,
                                                  levers.exchanges == Exchanges::kFree ? 0 : 1);
    return simulate(build_schedule(plan, model_), placement, model_, cluster_, *cost, ExpectedRouting(model_),
                    levers.tiles)
        .step;
  }

  i64 replicas_;
  ModelConfig model_;
  Cluster cluster_;
};

int run(i64 microbatches) {
  const std::vector<Levers> levers = {
      {"tensor parallel", Exchanges::kTensorParallel, Recompute::kSelect, WeightGradients::kWith, 1},
      {"tensor parallel, exchanges free", Exchanges::kFree, Recompute::kSelect, WeightGradients::kWith, 1},
      {"teams, experts by expert parallelism", Exchanges::kOfTeams, Recompute::kSelect,
       WeightGradients::kWith, 1},
      {"... weight gradients and recomputation in the waits", Exchanges::kOfTeams, Recompute::kSelect,
       WeightGradients::kAfter, 1},
      {"... experts in 8 tiles", Exchanges::kOfTeams, Recompute::kSelect, WeightGradients::kAfter, 1, 8},
      {"... two microbatches in a stage, no tiles", Exchanges::kOfTeams, Recompute::kSelect,
       WeightGradients::kAfter, 2}};
  std::vector<Row> rows;
  for (const i64 devices : {240, 720}) {
    Bench bench(devices);
    Seconds baseline = 0;
    for (const Levers& row : levers) {
      const Seconds step = bench.step(row, microbatches);
      if (baseline == 0) baseline = step;
      rows.push_back({std::to_string(devices), row.name, format_seconds(step),
                      fmt::format("{:.2f}", baseline / step),
                      fmt::format("{:.0f}", bench.memory(row) / kGiB)});
      std::cerr << rows.back()[0] << " " << row.name << ": " << rows.back()[3] << "\n";
    }
  }
  Document document;
  document.table({"H800", "plan", "step", "times the first", "GiB"}, rows);
  std::cout << document.text();
  return 0;
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  try {
    const int microbatches = argc > 1 ? std::atoi(argv[1]) : 45;
    if (microbatches < 1)
      hetermoe::fail<hetermoe::ConfigError>("MICROBATCHES", "got {}, expected 1 or more", argv[1]);
    return hetermoe::run(microbatches);
  } catch (const hetermoe::Error& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
