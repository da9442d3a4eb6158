#include "hetermoe/planner/strategies/compare.h"

#include <algorithm>
#include <numeric>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/placement/team.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/planner/estimate/host_use.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/strategies/depth_groups.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "hetermoe/planner/strategies/tensor_parallel.h"

namespace hetermoe {
namespace {

constexpr const char* kIdeal = "ep-ideal";
constexpr const char* kTensorParallel = "tp";
constexpr const char* kBest = "best";

std::string printed_name(const std::string& asked) {
  std::string name = asked;
  std::replace(name.begin(), name.end(), '_', '-');
  const std::vector<std::string> known = compared_strategies();
  if (std::find(known.begin(), known.end(), name) == known.end())
    fail<ConfigError>("strategy", "cannot compare \"{}\".{}", name, known_names_hint(name, known));
  return name;
}

/// Equal teams.
std::string teams_text(const ShareRow& row) {
  const i32 teams = num_teams(row);
  return fmt::format("{} of {}", counted(teams, "team"),
                     counted(static_cast<i64>(row.size()) / teams, "device"));
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
    setting_.dtype = options.dtype, setting_.wire = options.wire;
    setting_.grad_dtype = options.grad_dtype, setting_.wire_reduce = options.wire_reduce;
    setting_.memory_reserve = options.limits.memory_reserve;
    setting_.published = options.published;
    setting_.check_memory = options.check_memory;
    setting_.sequences = options.sequences > 0 ? options.sequences
                         : options.tokens > 0  ? options.tokens / seq_len
                                               : default_sequences(model, cluster, seq_len, options);
  }

  CompareRow row(const std::string& strategy) {
    CompareRow row;
    row.model = predictor_.model().name;
    row.cluster = predictor_.cluster().name;
    row.seq_len = setting_.seq_len;
    row.strategy = strategy;
    row.sequences = setting_.sequences;
    row.infeasible = unfit(strategy);
    if (!row.infeasible.empty()) return row;
    if (strategy == kIdeal) {
      fill_ideal(row);
      return row;
    }
    if (strategy == kTensorParallel) {
      fill_tensor_parallel(row);
      return row;
    }
    Tuned tuned = strategy == "ep"    ? ep(row, setting_)
                  : strategy == kBest ? planned(row.plan)
                                      : tune(strategy);
    if (strategy != kBest) pass_rows_on(tuned);
    if (tuned.prediction.from_first_windows) {
      if (std::optional<Prediction> whole = predictor_.whole_within(kAllWindows, tuned.plan)) {
        tuned.prediction = std::move(*whole);
        tuned.plan.predicted_step_s = tuned.prediction.step;
      }
    }
    fill(row, tuned);
    const bool runs = row.infeasible.empty() && row.over_memory.empty() && within_bounds(tuned.plan);
    if (runs && (fastest_.plan.groups.empty() || tuned.prediction.step < fastest_.prediction.step))
      fastest_ = tuned, fastest_name_ = strategy;
    return row;
  }

 private:
  /// What keeps a strategy from the cluster, in words; empty = nothing.
  std::string unfit(const std::string& name) const {
    if (name == kBest || name == kTensorParallel) return "";
    bool apart = true;
    if (name != kIdeal) {
      const Strategy& strategy = find_strategy(name);
      std::string misfits = misfit(strategy, predictor_.model(), predictor_.cluster());
      if (!misfits.empty()) return misfits;
      apart = strategy.use == DeviceUse::kApart;
    }
    return apart && roles_.experts.empty() ? "a single device has no other beside it" : "";
  }

  /// Rows that go once to each node, where that is faster and has room.
  void pass_rows_on(Tuned& tuned) {
    const Cluster& cluster = predictor_.cluster();
    if (!tuned.infeasible.empty() || setting_.published) return;
    std::optional<Plan> plan = with_row_nodes(tuned.plan, cluster);
    if (!plan) return;
    if (setting_.check_memory && !overfilled_device(memory_of(predictor_, setting_, *plan), cluster).empty())
      return;
    Prediction prediction = predictor_.predict(*plan);
    if (prediction.step >= tuned.prediction.step) return;
    plan->predicted_step_s = prediction.step;
    tuned.plan = std::move(*plan), tuned.prediction = std::move(prediction);
  }

  Tuned tune(const std::string& strategy) {
    if (strategy == "dist-ep") return tune_dist_ep(predictor_, setting_);
    if (strategy == "pp-ep") return tune_pp(predictor_, setting_);
    if (strategy == "af-pipe") return tune_depth_groups(predictor_, setting_);
    if (strategy == "sp-ep") return tune_teams(predictor_, setting_);
    if (strategy == "zebra") return tune_zebra(predictor_, setting_, options_.asym_ea);
    return tune_microbatches(predictor_, setting_, strategy);
  }

  Tuned planned(std::string& name) const {
    PlanRequest request;
    request.routing.margin = 1;  // as all rows
    request.model = predictor_.model();
    request.cluster = predictor_.cluster();
    request.seq_len = setting_.seq_len;
    request.sequences = setting_.sequences;
    request.dtype = setting_.dtype, request.wire = setting_.wire;
    request.grad_dtype = grad_dtype_of(setting_), request.wire_reduce = setting_.wire_reduce;
    request.software = predictor_.software();
    request.limits = options_.limits;
    request.limits.idle.clear();  // they are not in this cluster
    const PlanResult result = find_plan(request);
    const bool other = !fastest_.plan.groups.empty();
    if (other && (!result.feasible() || fastest_.prediction.step < result.best().prediction.step)) {
      name = "that of " + fastest_name_;
      return fastest_;
    }
    Tuned tuned;
    tuned.infeasible = result.infeasible;
    if (!result.feasible()) return tuned;
    name = result.best().name;
    tuned.plan = result.best().plan;
    tuned.prediction = result.best().prediction;
    return tuned;
  }

  /// Those that `best` has.
  bool within_bounds(const Plan& plan) const {
    const i64 most = options_.limits.max_microbatches;
    return std::all_of(plan.groups.begin(), plan.groups.end(), [&](const Group& group) {
      return most == 0 || static_cast<i64>(group.microbatches.size()) <= most;
    });
  }

  void fill(CompareRow& row, const Tuned& tuned) {
    row.infeasible = tuned.infeasible;
    if (!row.infeasible.empty()) return;
    row.tokens_per_s = tuned.prediction.tokens_per_s;
    row.step_s = tuned.prediction.step;
    row.from_first_microbatches = tuned.prediction.from_first_windows;
    row.utilization_attention = mean_busy(tuned.prediction, roles_.attention);
    row.utilization_expert = mean_busy(tuned.prediction, roles_.experts);
    row.experts_moved = tuned.experts_moved;
    if (row.strategy != kBest && row.experts_moved.empty()) {
      row.experts_moved.assign(static_cast<std::size_t>(predictor_.model().num_layers), 0);
    }
    if (row.strategy == "af-pipe")
      row.plan = counted(depth_groups_of(tuned.plan.groups[0]).attention, "depth group") +
                 (tuned.plan.combine_to == CombineTo::kNext ? ", combine_to next" : "");
    else if (row.strategy == "sp-ep")
      row.plan = teams_text(tuned.plan.groups[0].layers[0].attention[0]) +
                 (tuned.plan.head_parts > 1 ? fmt::format(", heads in {} parts", tuned.plan.head_parts) : "");
    row.roles = allocation_of_plan(tuned.plan, predictor_.model(), predictor_.cluster(),
                                   *predictor_.cost(tuned.plan));
    const bool told = row.strategy == kTensorParallel;  // its parts of matrices are not those of the plan
    row.memory_bytes = told ? tuned.prediction.memory : memory_of(predictor_, setting_, tuned.plan);
    row.cost = run_cost_of(predictor_.cluster(), tuned.plan, row.tokens_per_s);
    row.on_hosts = kept_on_hosts(tuned.plan);
    if (!tuned.plan.row_nodes.empty() && row.strategy != kBest)
      row.plan += row.plan.empty() ? "rows by node" : ", rows by node";
    row.microbatches = static_cast<i64>(tuned.plan.groups[0].microbatches.size());
    row.chunks = tuned.plan.chunks;
  }

  /// A baseline that no plan here is: nothing runs so, and `best` may not take it.
  void fill_tensor_parallel(CompareRow& row) {
    const Tuned tuned =
        tune_tensor_parallel(predictor_.model(), predictor_.cluster(), setting_, predictor_.software());
    fill(row, tuned);
    if (!row.infeasible.empty()) return;
    row.plan = fmt::format("{} of {}, simulated alone", counted(std::ssize(tuned.plan.groups), "group"),
                           counted(std::ssize(tuned.plan.groups[0].devices), "device"));
    if (tuned.plan.shard_optimizer) row.plan += ", optimizer divided over groups";
  }

  /// EP on the newer and on the older devices alone, throughputs added: a bound, nothing that could run. Each
  /// half takes whole sequences per device.
  void fill_ideal(CompareRow& row) {
    const CompareRow newer = ideal_half(row, roles_.attention);
    const CompareRow older = ideal_half(row, roles_.experts);
    row = newer;
    row.tokens_per_s += older.tokens_per_s;
    row.cost = {};  // a bound, which nobody pays
    row.step_s = static_cast<double>(setting_.sequences * setting_.seq_len) / row.tokens_per_s;
    row.utilization_expert = older.utilization_expert;
    if (row.over_memory.empty()) row.over_memory = older.over_memory;
    for (std::size_t d = 0; d < row.memory_bytes.size(); ++d) row.memory_bytes[d] += older.memory_bytes[d];
  }

  CompareRow ideal_half(CompareRow row, const std::vector<DeviceId>& devices) {
    Setting half = setting_;
    const auto count = static_cast<i64>(devices.size());
    half.sequences = std::max<i64>(1, setting_.sequences / count) * count;
    fill(row, ep(row, half, devices));
    return row;
  }

  /// EP with its smallest microbatch overfilling a device still counts: the published runs held it, so the
  /// difference is in the memory that our estimate adds.
  Tuned ep(CompareRow& row, Setting setting, const std::vector<DeviceId>& devices = {}) {
    Tuned tuned = tune_ep(predictor_, setting, devices);
    if (tuned.infeasible.empty()) return tuned;
    setting.check_memory = false;
    setting.one_sequence = true;
    tuned = tune_ep(predictor_, setting, devices);
    row.over_memory = overfilled_device(memory_of(predictor_, setting, tuned.plan), predictor_.cluster());
    return tuned;
  }

  Predictor predictor_;
  Roles roles_;
  const CompareOptions& options_;
  Setting setting_;
  Tuned fastest_;  ///< of those that run
  std::string fastest_name_;
};

/// Has no prime factor above 5, so that many microbatch counts divide it.
bool is_smooth(i64 number) {
  for (const i64 prime : {2, 3, 5}) {
    while (number % prime == 0) number /= prime;
  }
  return number == 1;
}

}  // namespace

std::vector<std::string> compared_strategies() {
  std::vector<std::string> names = strategy_names();
  for (const Baseline& baseline : baselines()) names.push_back(baseline.name);
  return names;
}

i64 default_sequences(const ModelConfig& model, const Cluster& cluster, i64 seq_len,
                      const CompareOptions& options) {
  // Only zebra keeps every microbatch of a step in flight: the others repeat small microbatches, so what
  // zebra can hold is what all can. Without experts, or a second device, there is no zebra.
  const Roles roles = default_roles(cluster);
  const bool no_zebra = model.num_moe_layers() == 0 || roles.experts.empty();
  Predictor predictor(model, cluster, options.software);
  const auto attention = static_cast<i64>(roles.attention.size());
  const auto devices = static_cast<i64>(cluster.num_devices());
  const i64 unit = std::lcm(attention, devices);
  Setting setting{.seq_len = seq_len, .dtype = options.dtype, .published = options.published};
  const i64 by_tokens = kMaxStepTokens / (seq_len * unit),
            to_fill = options.published ? 1 : kSequencesToFill * devices / unit;
  // Fewer sequences take less room, so where the fewest do not fit no other number does.
  setting.sequences = unit;
  if (!no_zebra && !zebra_fits(predictor, setting, options.asym_ea, true)) return unit;
  // A batch that forces experts to where they are slow is better than none.
  for (const bool forced : {false, true}) {
    for (i64 units = std::max({i64{1}, by_tokens, to_fill}); units > 1; --units) {
      setting.sequences = units * unit;
      if (is_smooth(units) && (no_zebra || zebra_fits(predictor, setting, options.asym_ea, forced)))
        return setting.sequences;
    }
  }
  return unit;
}

std::vector<CompareRow> compare_strategies(const ModelConfig& model, const Cluster& whole,
                                           const std::vector<i64>& seq_lens, const CompareOptions& options) {
  std::vector<std::string> names;
  for (const std::string& name : options.strategies) names.push_back(printed_name(name));
  std::vector<CompareRow> rows;
  const Cluster cluster = without(whole, options.limits.idle);
  if (cluster.devices.empty())
    fail<ConfigError>("--idle", "got all devices of {}, expected at least one to remain", cluster.name);
  for (const i64 seq_len : seq_lens) {  // all, before the first is computed
    if (seq_len < 1) fail<ConfigError>("--seq", "got {}, expected at least 1", seq_len);
    check_positions(model, seq_len);
    if (options.tokens > 0 && options.tokens < seq_len)
      fail<ConfigError>("--tokens", "got {}, expected at least one sequence of {} tokens", options.tokens,
                        seq_len);
  }
  for (const i64 seq_len : seq_lens) {
    Comparison comparison(model, cluster, seq_len, options);
    const std::size_t first = rows.size();
    rows.resize(first + names.size());
    // best comes last: it is at least as fast as the others.
    for (const bool best : {false, true}) {
      for (std::size_t n = 0; n < names.size(); ++n) {
        if ((names[n] == kBest) == best) rows[first + n] = comparison.row(names[n]);
      }
    }
    if (!rows[first].over_memory.empty() || rows[first].tokens_per_s <= 0) continue;
    for (std::size_t r = first; r < rows.size(); ++r)
      rows[r].speed_over_first = rows[r].tokens_per_s / rows[first].tokens_per_s;
  }
  return rows;
}

namespace {

Json figures_of(const CompareRow& row) {
  return {{"tokens_per_s", row.tokens_per_s},
          {"speed_over_first", row.speed_over_first},
          {"step_s", row.step_s},
          {"utilization", {{"attention", row.utilization_attention}, {"expert", row.utilization_expert}}},
          {"experts_moved", row.experts_moved},
          {"memory_bytes", row.memory_bytes},
          {"cost", to_json(row.cost, 0)},
          {"microbatches", row.microbatches},
          {"chunks", row.chunks},
          {"from_first_microbatches", row.from_first_microbatches}};
}

}  // namespace

Json to_json(const std::vector<CompareRow>& rows) {
  Json out = Json::array();
  for (const CompareRow& row : rows) {
    Json json = {{"model", row.model},         {"cluster", row.cluster},   {"seq_len", row.seq_len},
                 {"sequences", row.sequences}, {"strategy", row.strategy}, {"source", "simulated"}};
    const Json figures = figures_of(row);
    const bool runs = row.infeasible.empty() && row.over_memory.empty();
    if (runs && row.roles) json["roles"] = to_json(*row.roles);
    for (const auto& [key, value] : figures.items()) json[key] = runs ? value : Json();
    if (!row.infeasible.empty()) json["infeasible"] = row.infeasible;
    if (!row.over_memory.empty()) json["over_memory"] = row.over_memory, json["as_if_it_fitted"] = figures;
    if (!row.plan.empty()) json["plan"] = row.plan;
    if (!row.on_hosts.empty()) json["on_hosts"] = row.on_hosts;
    out.push_back(std::move(json));
  }
  return {{"rows", std::move(out)}};
}

}  // namespace hetermoe
