#include "hetermoe/planner/critical_path.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/short_model.h"

namespace hetermoe {
namespace {

using Causes = std::map<std::string, Seconds>;

/// Seconds of the critical path by cause.
Causes path_by_cause(const PlanRequest& request, const Schedule& schedule, const OpTimes& times) {
  std::vector<OpId> before(schedule.ops.size(), -1);  // the op whose end let this one start
  std::vector<OpId> lane_last(static_cast<std::size_t>(schedule.num_devices * kNumQueues), -1);
  const auto later = [&](OpId a, OpId b) {
    return a < 0 || times.end[static_cast<std::size_t>(b)] > times.end[static_cast<std::size_t>(a)] ? b : a;
  };
  OpId last = -1;
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    OpId& from = before[static_cast<std::size_t>(op)];
    for (const OpId dep : schedule.deps_of(op)) from = later(from, dep);
    for (const LaneId lane : schedule.lanes_of(op)) {
      OpId& previous = lane_last[static_cast<std::size_t>(lane)];
      if (previous >= 0) from = later(from, previous);
      previous = op;
    }
    last = later(last, op);
  }
  Causes causes;
  for (OpId op = last; op >= 0; op = before[static_cast<std::size_t>(op)]) {
    const auto i = static_cast<std::size_t>(op);
    const OpKind kind = schedule.ops[i].kind;
    std::string cause = "transfers";
    if (kind == OpKind::kReduce) cause = "reduction of gradients";
    if (is_compute(kind)) {
      const std::string what = kind == OpKind::kExperts  ? "experts"
                               : kind == OpKind::kUpdate ? "optimizer"
                               : kind == OpKind::kHead   ? "head"
                                                         : "attention";
      cause = what + " on " + request.cluster.type_of(device_of(schedule.lanes_of(op)[0])).name;
    }
    causes[cause] += times.end[i] - times.start[i];
  }
  return causes;
}

/// Seconds of the critical path of a plan by cause.
Causes simulate_path(const PlanRequest& request, const ModelConfig& model, const Plan& plan) {
  const FoldedStep folded = make_folded_step(
      plan, model, request.cluster,
      *make_cost(model, request.cluster, plan, load_profiles(request.cluster), request.software),
      ExpectedRouting(model));
  Simulator simulator;
  return path_by_cause(request, folded.schedule, simulator.run(folded.schedule, folded.costs));
}

/// longer + times * (longer - shorter)
Causes extend(Causes longer, Causes shorter, double times) {
  for (auto& [cause, seconds] : longer) seconds = std::max(0.0, seconds + times * (seconds - shorter[cause]));
  return longer;
}

Causes of_windows(const PlanRequest& request, const ModelConfig& model, const Plan& plan) {
  const std::vector<Repeat> repeated = repeated_windows(plan);
  if (repeated.empty()) return simulate_path(request, model, plan);
  i64 times = 0;
  for (const Repeat& repeat : repeated) times = std::max(times, repeat.times);
  return extend(simulate_path(request, model, without_repeats(plan, repeated, 0)),
                simulate_path(request, model, without_repeats(plan, repeated, 1)), real(times));
}

}  // namespace

std::vector<Cause> critical_path(const PlanRequest& request, Plan plan) {
  const ShortModel shortened(request.model, request.cluster, request.software);
  Causes causes;
  if (shortened.shortens()) {
    const auto cut = [&](const ModelConfig& model) {
      return of_windows(request, model, ShortModel::cut(plan, model.num_layers));
    };
    causes = extend(cut(shortened.longer_model()), cut(shortened.shorter_model()), shortened.extra());
  } else {
    causes = of_windows(request, request.model, plan);
  }
  Seconds sum = 0;
  for (const auto& [cause, seconds] : causes) sum += seconds;
  std::vector<Cause> path;
  for (const auto& [cause, seconds] : causes) path.push_back({cause, sum > 0 ? seconds / sum : 0});
  std::stable_sort(path.begin(), path.end(),
                   [](const Cause& a, const Cause& b) { return a.share > b.share; });
  return path;
}

std::string in_words(const std::vector<Cause>& path) {
  std::string text;
  for (std::size_t i = 0; i < std::min<std::size_t>(path.size(), 3); ++i) {
    if (path[i].share <= 0.03) break;
    text += fmt::format("{}{:.0f} % {}", text.empty() ? "" : ", ", 100 * path[i].share, path[i].what);
  }
  return "critical path: " + text;
}

}  // namespace hetermoe
