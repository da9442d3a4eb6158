#include "hetermoe/planner/estimate/critical_path.h"

#include <algorithm>
#include <limits>
#include <map>
#include <optional>

#include "hetermoe/base/index.h"
#include "hetermoe/planner/estimate/short_model.h"
#include "hetermoe/timeline/critical_path.h"

namespace hetermoe {
namespace {

using Causes = std::map<std::string, Seconds>;

std::string cause_of(const Timeline& timeline, const PathPiece& piece) {
  if (piece.op == kNoOp) return "gaps";
  const TimelineOp& op = timeline.ops[idx(piece.op)];
  if (op.kind == name_of(OpKind::kReduce) || op.kind == name_of(OpKind::kReduceScatter))
    return "reduction of gradients";
  if (op.kind == name_of(OpKind::kAllGather)) return "gathering of updated weights";
  if (op.queue.starts_with(name_of(Queue::kToDevice)) || op.queue.starts_with(name_of(Queue::kToHost)))
    return kHostCopies;
  if (op.queue != name_of(Queue::kCompute)) return kTransfers;
  const bool is_named = op.kind == name_of(OpKind::kExperts) || op.kind == name_of(OpKind::kHead);
  const std::string what = op.kind == name_of(OpKind::kUpdate) ? "optimizer"
                           : is_named                          ? op.kind
                                                               : "attention";
  return what + " on " + timeline.devices[idx(piece.device)].type;
}

/// What one simulation of a plan, perhaps of its first layers, shows.
struct Path {
  Causes causes;  ///< seconds
  Timeline timeline;
};

std::optional<Path> simulate_path(const PlanRequest& request, const ModelConfig& model, const Plan& plan,
                                  i64 max_visits = std::numeric_limits<i64>::max()) {
  const std::optional<FoldedStep> folded = make_folded_step_within(
      max_visits, plan, model, request.cluster,
      *make_cost(model, request.cluster, plan, load_profiles(request.cluster), request.software),
      *load_of(request.routing, model), step_options(request.trained, request.model, model));
  if (!folded) return {};
  Simulator simulator;
  Path path;
  path.timeline = listed_timeline(*folded, simulator.run(folded->schedule, folded->costs), request.cluster);
  for (const PathPiece& piece : CriticalPath(path.timeline).of_step())
    path.causes[cause_of(path.timeline, piece)] += piece.end - piece.start;
  return path;
}

/// longer + times * (longer - shorter)
Causes extend(Causes longer, const Causes& shorter, double times) {
  for (auto& [cause, seconds] : longer) {
    const auto before = shorter.find(cause);
    seconds = std::max(0.0, seconds + times * (seconds - (before != shorter.end() ? before->second : 0)));
  }
  return longer;
}

Path of_windows(const PlanRequest& request, const ModelConfig& model, const Plan& plan) {
  const std::vector<Repeat> repeated = repeated_windows(plan);
  if (repeated.empty()) return *simulate_path(request, model, plan);
  i64 times = 0;
  for (const Repeat& repeat : repeated) times = std::max(times, repeat.times);
  Path path = *simulate_path(request, model, without_repeats(plan, repeated, 0));
  const Path shorter = *simulate_path(request, model, without_repeats(plan, repeated, 1));
  path.causes = extend(std::move(path.causes), shorter.causes, real(times));
  return path;
}

}  // namespace

std::vector<Cause> critical_path(const PlanRequest& request, Plan plan, Timeline& timeline) {
  const ShortModel shortened(request.model, request.cluster, request.software, request.trained);
  Path whole;
  if (std::optional<Path> exact = simulate_path(request, request.model, plan, kAllWindows)) {
    whole = std::move(*exact);
  } else if (shortened.shortens()) {
    const auto cut = [&](const ModelConfig& model) {
      return of_windows(request, model, ShortModel::cut(plan, model.num_layers));
    };
    whole = cut(shortened.longer_model());
    whole.causes = extend(std::move(whole.causes), cut(shortened.shorter_model()).causes, shortened.extra());
  } else {
    whole = of_windows(request, request.model, plan);
  }
  timeline = std::move(whole.timeline);
  const Causes& causes = whole.causes;
  Seconds sum = 0;
  for (const auto& [cause, seconds] : causes) sum += seconds;
  std::vector<Cause> path;
  for (const auto& [cause, seconds] : causes) path.push_back({cause, sum > 0 ? seconds / sum : 0});
  std::stable_sort(path.begin(), path.end(),
                   [](const Cause& a, const Cause& b) { return a.share > b.share; });
  return path;
}

std::string in_words(const std::vector<Cause>& path) {
  if (path.empty()) return "";
  std::string text = fmt::format("{}, {:.0f} % of the critical path", path[0].what, 100 * path[0].share);
  for (std::size_t i = 1; i < std::min<std::size_t>(path.size(), 3); ++i) {
    if (path[i].share <= 0.03) break;
    text += fmt::format("{}{} {:.0f} %", i == 1 ? "; then " : ", ", path[i].what, 100 * path[i].share);
  }
  return text;
}

}  // namespace hetermoe
