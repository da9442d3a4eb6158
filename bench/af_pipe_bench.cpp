// How much faster depth groups are than a pipeline with expert parallelism, beside what AF-Pipe published
// (arXiv 2605.11005): 1.59 to 1.81 times on 8 to 16 nodes of 8 H800. Usage: af_pipe_bench [WORD...], rows
// whose description has all words. Everything printed here is simulated, in bf16, as if all had room.
#include <iostream>

#include "bench/document.h"
#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/planner/predict.h"
#include "hetermoe/planner/strategies/allocation.h"

namespace hetermoe {
namespace {

constexpr i64 kDevicesOfNode = 8;
constexpr i64 kSequencesOfNode = 32;

struct Setting {
  std::string model;
  i64 nodes, seq_len;
  std::string text() const { return fmt::format("{}, {} nodes, {}", model, nodes, seq_len); }
};

/// As the table of the paper has it: 28 layers, 64 experts of width 1408, top-4.
ModelConfig deepseek_moe() {
  ModelConfig model = load_model("olmoe-1b-7b");
  model.name = "deepseek-moe";
  model.vocab = 102400;
  model.num_layers = 28, model.dense_layer.assign(28, false);
  model.num_experts = 64, model.top_k = 4, model.expert_hidden = 1408;
  return model;
}

ModelConfig model_of(const Setting& setting) {
  ModelConfig model = setting.model == "deepseek-moe" ? deepseek_moe() : load_model(setting.model);
  model.max_positions = 0;  // lengths are those of the paper
  return model;
}

Cluster cluster_of(const Setting& setting) {
  Cluster cluster = load_cluster("h800-16x8");
  cluster.nodes.resize(idx(setting.nodes));
  cluster.devices.resize(idx(setting.nodes * kDevicesOfNode));
  return cluster;
}

struct Result {
  Plan plan;
  double tokens_per_s = 0;
  Bytes memory = 0;  ///< of the fullest device, by estimate
};

class Bench {
 public:
  /// by_node: rows may go once to each node, in either.
  Bench(const Setting& setting, std::vector<i64> nics, bool by_node = false)
      : setting_(setting),
        nics_(std::move(nics)),
        by_node_(by_node),
        model_(model_of(setting)),
        cluster_(cluster_of(setting)),
        predictor_(model_, cluster_) {}

  /// Stages of two nodes each, 16 devices with expert parallelism, 1F1B; the best number of microbatches.
  Result pipeline() {
    Result best;
    for (const i64 each : {1, 2, 4}) {
      StrategyRequest request = request_of(sequences() / (2 * kDevicesOfNode * each));
      request.stages = setting_.nodes / 2;
      keep(best, find_strategy("pp-ep").make(model_, cluster_, request));
    }
    return best;
  }

  /// Of every node some devices with attention, the others with experts; the best depth and numbers.
  Result depth_groups() {
    Result best;
    for (const i64 groups : {setting_.nodes / 2, setting_.nodes}) {
      for (const i64 of_node : {3, 4, 5, 6}) {
        // A sequence for each device of a group.
        StrategyRequest request = request_of(sequences() / (setting_.nodes * of_node / groups));
        for (DeviceId d = 0; d < cluster_.num_devices(); ++d)
          (d % kDevicesOfNode < of_node ? request.attention : request.experts).push_back(d);
        request.depth_groups = {groups};
        request.head_on = HeadOn::kAttention;
        for (const CombineTo combine_to : {CombineTo::kSource, CombineTo::kNext}) {
          if (combine_to == CombineTo::kSource && !by_node_) continue;  // slower
          request.combine_to = combine_to;
          keep(best, find_strategy("af-pipe").make(model_, cluster_, request));
        }
      }
    }
    return best;
  }

  /// By closed forms.
  Allocation allocation() {
    Plan plan;
    plan.seq_len = setting_.seq_len;
    plan.dtype.assign(cluster_.devices.size(), Dtype::kBf16);
    plan.wire_forward = plan.wire_backward = wire_of(Dtype::kBf16);
    return allocate(allocation_input(model_, cluster_, *predictor_.cost(plan), plan, real(kDevicesOfNode)));
  }

 private:
  i64 sequences() const { return kSequencesOfNode * setting_.nodes; }
  StrategyRequest request_of(i64 microbatches) const {
    StrategyRequest request;
    request.seq_len = setting_.seq_len;
    request.sequences = sequences();
    request.microbatches = std::max<i64>(1, microbatches);
    request.dtype = Dtype::kBf16;
    request.nics = nics_;
    return request;
  }
  void keep(Result& best, Plan plan) {
    plan.dtype.assign(cluster_.devices.size(), Dtype::kBf16);
    plan.wire_forward = plan.wire_backward = wire_of(Dtype::kBf16);
    plan.nics = nics_;
    if (by_node_ && plan.row_nodes.empty()) {
      if (std::optional<Plan> once = with_row_nodes(plan, cluster_)) keep(best, *std::move(once));
    }
    const double speed = predictor_.predict(plan).tokens_per_s;
    if (speed <= best.tokens_per_s) return;
    const std::vector<Bytes> memory = estimate_memory(plan, model_);
    best = {std::move(plan), speed, *std::max_element(memory.begin(), memory.end())};
  }

  Setting setting_;
  std::vector<i64> nics_;  ///< [device] of its own; empty = none
  bool by_node_;
  ModelConfig model_;
  Cluster cluster_;
  Predictor predictor_;
};

std::string split_text(double attention, double experts) {
  return fmt::format("16:{:.1f}", 16 * experts / attention);
}

/// Devices with experts for 16 with attention, and groups.
std::string shape_text(const Result& result) {
  const std::vector<std::string> roles = roles_of(result.plan);
  const auto attention = real(std::count(roles.begin(), roles.end(), "attention"));
  return fmt::format("{}, {}", split_text(attention, real(std::ssize(roles)) - attention),
                     result.plan.window / 4);
}

Row row_of(const Setting& setting) {
  const std::vector<i64> one_each(idx(setting.nodes * kDevicesOfNode), 1);
  Bench bench(setting, {}), own_nics(setting, one_each), by_node(setting, {}, true);
  const Result pipeline = bench.pipeline(), depth = bench.depth_groups(), pipeline_nics = own_nics.pipeline(),
               depth_nics = own_nics.depth_groups(), pipeline_once = by_node.pipeline(),
               depth_once = by_node.depth_groups();
  const Allocation allocation = bench.allocation();
  const auto speed = [](const Result& result) { return fmt::format("{:.0f}", result.tokens_per_s); };
  const auto gib = [](const Result& result) { return fmt::format("{:.0f}", result.memory / kGiB); };
  const auto times = [](const Result& a, const Result& b) {
    return fmt::format("{:.2f}", a.tokens_per_s / b.tokens_per_s);
  };
  return {setting.text(),
          speed(pipeline),
          gib(pipeline),
          speed(depth),
          gib(depth),
          times(depth, pipeline),
          shape_text(depth),
          speed(pipeline_nics),
          speed(depth_nics),
          times(depth_nics, pipeline_nics),
          shape_text(depth_nics),
          split_text(real(allocation.attention), real(allocation.experts)),
          speed(pipeline_once),
          speed(depth_once),
          times(depth_once, pipeline_once)};
}

int run(const std::vector<std::string>& words) {
  std::vector<Row> rows;
  for (const char* model : {"qwen3-235b-a22b", "gpt-oss-120b", "deepseek-moe"}) {
    for (const i64 nodes : {8, 16}) {
      for (const i64 seq_len : {4096, 16384}) {
        const Setting setting{model, nodes, seq_len};
        const bool asked = std::all_of(words.begin(), words.end(), [&](const std::string& word) {
          return setting.text().find(word) != std::string::npos;
        });
        if (!asked) continue;
        rows.push_back(row_of(setting));
        std::cerr << setting.text() << ": " << rows.back()[5] << ", " << rows.back()[9] << "\n";
      }
    }
  }
  Document document;
  document.table({"model, nodes, tokens of a sequence", "pp-ep tokens/s", "GiB", "af-pipe tokens/s", "GiB",
                  "times", "split, groups", "pp-ep, NICs", "af-pipe, NICs", "times", "split, groups",
                  "by closed forms", "pp-ep, rows by node", "af-pipe, rows by node", "times"},
                 rows);
  std::cout << document.markdown();
  return 0;
}

}  // namespace
}  // namespace hetermoe

int main(int argc, char** argv) {
  try {
    return hetermoe::run({argv + 1, argv + argc});
  } catch (const hetermoe::Error& error) {
    std::cerr << error.what() << "\n";
    return 2;
  }
}
