#include "hetermoe/planner/compare.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/plan/strategies.h"
#include "hetermoe/planner/memory_estimate.h"

namespace hetermoe {
namespace {

const std::vector<std::string> kKnown = {"zebra", "ep", "ep-ideal", "dist-ep", "pp"};

std::string printed_name(std::string name) {
  std::replace(name.begin(), name.end(), '_', '-');
  if (std::find(kKnown.begin(), kKnown.end(), name) == kKnown.end()) {
    fail<ConfigError>("strategy", "cannot compare \"{}\".{}", name, known_names_hint(name, kKnown));
  }
  return name;
}

double mean_busy(const Prediction& prediction, const std::vector<DeviceId>& devices) {
  double sum = 0;
  for (const DeviceId d : devices) sum += prediction.busy[static_cast<std::size_t>(d)];
  return devices.empty() ? 0 : sum / static_cast<double>(devices.size());
}

/// Fills one row per strategy.
class Comparison {
 public:
  Comparison(const ModelConfig& model, const Cluster& cluster, i64 seq_len, const CompareOptions& options)
      : predictor_(model, cluster, options.software), roles_(default_roles(cluster)), options_(options) {
    setting_.seq_len = seq_len;
    setting_.dtype = options.dtype;
    setting_.row_dedup = options.row_dedup;
    setting_.check_memory = options.check_memory;
    setting_.sequences =
        options.sequences > 0 ? options.sequences : default_sequences(model, cluster, seq_len, options);
  }

  CompareRow row(const std::string& strategy) {
    CompareRow row;
    row.model = predictor_.model().name;
    row.cluster = predictor_.cluster().name;
    row.seq_len = setting_.seq_len;
    row.strategy = strategy;
    row.sequences = setting_.sequences;
    if (setting_.sequences == 0) {
      row.infeasible = "not even one sequence per device fits";
    } else if (strategy == "ep-ideal") {
      fill_ideal(row);
    } else {
      fill(row, tune(strategy));
    }
    return row;
  }

 private:
  Tuned tune(const std::string& strategy) {
    if (strategy == "ep") return tune_ep(predictor_, setting_);
    if (strategy == "dist-ep") return tune_dist_ep(predictor_, setting_);
    if (strategy == "pp") return tune_pp(predictor_, setting_);
    return tune_zebra(predictor_, setting_, options_.asym_ea);
  }

  void fill(CompareRow& row, const Tuned& tuned) const {
    row.infeasible = tuned.infeasible;
    if (!row.infeasible.empty()) return;
    row.tokens_per_s = tuned.prediction.tokens_per_s;
    row.step_s = tuned.prediction.step;
    row.utilization_attention = mean_busy(tuned.prediction, roles_.attention);
    row.utilization_expert = mean_busy(tuned.prediction, roles_.experts);
    row.experts_moved = tuned.experts_moved;
    row.memory_bytes = estimate_memory(tuned.plan, predictor_.model());
    row.microbatches = static_cast<i64>(tuned.plan.groups[0].microbatches.size());
    row.chunks = tuned.plan.chunks;
  }

  /// EP on the newer and on the older devices alone, throughputs added: a bound, nothing that could run. So a
  /// half that does not fit with its smallest microbatch still counts with that one, and each half takes
  /// whole sequences per device.
  void fill_ideal(CompareRow& row) {
    const CompareRow newer = ideal_half(row, roles_.attention);
    const CompareRow older = ideal_half(row, roles_.experts);
    row = newer;
    row.tokens_per_s += older.tokens_per_s;
    row.step_s = static_cast<double>(setting_.sequences * setting_.seq_len) / row.tokens_per_s;
    row.utilization_expert = older.utilization_expert;
    for (std::size_t d = 0; d < row.memory_bytes.size(); ++d) row.memory_bytes[d] += older.memory_bytes[d];
  }

  CompareRow ideal_half(CompareRow row, const std::vector<DeviceId>& devices) {
    Setting half = setting_;
    const auto count = static_cast<i64>(devices.size());
    half.sequences = std::max<i64>(1, setting_.sequences / count) * count;
    Tuned tuned = tune_ep(predictor_, half, devices);
    if (!tuned.infeasible.empty()) {
      half.check_memory = false;
      half.one_sequence = true;
      tuned = tune_ep(predictor_, half, devices);
    }
    fill(row, tuned);
    return row;
  }

  Predictor predictor_;
  Roles roles_;
  const CompareOptions& options_;
  Setting setting_;
};

bool fits(const Plan& plan, const ModelConfig& model, const Cluster& cluster) {
  return overfilled_device(estimate_memory(plan, model), cluster).empty();
}

}  // namespace

i64 default_sequences(const ModelConfig& model, const Cluster& cluster, i64 seq_len,
                      const CompareOptions& options) {
  // Only zebra keeps every microbatch of a step in flight: the others repeat small microbatches, so what
  // zebra can hold with its smallest ones is what all can.
  const Roles roles = default_roles(cluster);
  const auto attention = static_cast<i64>(roles.attention.size());
  const auto largest = [&](i64 unit) {
    i64 sequences = std::max<i64>(1, kMaxStepTokens / (seq_len * unit)) * unit;
    for (; sequences > 0; sequences -= unit) {
      StrategyRequest request;
      request.seq_len = seq_len;
      request.sequences = sequences;
      request.microbatches = sequences / attention;
      Plan plan = find_strategy("zebra").make(model, cluster, request);
      plan.dtype.assign(plan.dtype.size(), options.dtype);
      if (fits(plan, model, cluster)) break;
    }
    return sequences;
  };
  const i64 sequences = largest(std::lcm(attention, static_cast<i64>(cluster.num_devices())));
  return sequences > 0 ? sequences : largest(attention);
}

std::vector<CompareRow> compare_strategies(const ModelConfig& model, const Cluster& cluster,
                                           const std::vector<i64>& seq_lens, const CompareOptions& options) {
  std::vector<std::string> names;
  for (const std::string& name : options.strategies) names.push_back(printed_name(name));
  std::vector<CompareRow> rows;
  for (const i64 seq_len : seq_lens) {
    if (seq_len < 1) fail<ConfigError>("seq_len", "got {}, expected at least 1", seq_len);
    if (model.max_positions > 0 && seq_len > model.max_positions) {
      fail<ConfigError>("seq_len", "got {}, but model {} has {} positions", seq_len, model.name,
                        model.max_positions);
    }
    Comparison comparison(model, cluster, seq_len, options);
    for (const std::string& name : names) rows.push_back(comparison.row(name));
  }
  return rows;
}

Json to_json(const std::vector<CompareRow>& rows) {
  Json out = Json::array();
  for (const CompareRow& row : rows) {
    Json json = {
        {"model", row.model}, {"cluster", row.cluster}, {"seq_len", row.seq_len}, {"strategy", row.strategy}};
    if (!row.infeasible.empty()) {
      json["infeasible"] = row.infeasible;
    } else {
      json["tokens_per_s"] = row.tokens_per_s;
      json["step_s"] = row.step_s;
      json["utilization"] = {{"attention", row.utilization_attention}, {"expert", row.utilization_expert}};
      json["experts_moved"] = row.experts_moved;
      json["memory_bytes"] = row.memory_bytes;
      json["sequences"] = row.sequences;
      json["microbatches"] = row.microbatches;
      json["chunks"] = row.chunks;
    }
    out.push_back(std::move(json));
  }
  return {{"rows", std::move(out)}};
}

}  // namespace hetermoe
