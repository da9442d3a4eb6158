#include <optional>
#include <utility>

#include "hetermoe/planner/host_use.h"
#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search.h"

namespace hetermoe {
namespace {

/// Where no plan has room without: the fastest of those that keep more or less on hosts. What takes little
/// from the devices leaves them little room for activations, so the least is not always the best.
PlanResult search_with_hosts(PlanRequest request, PlanResult without) {
  request.limits.shard_optimizer = false;  // hosts update whole parts
  std::optional<PlanResult> best;
  std::string lack;
  for (const HostUse use : kHostUses) {
    request.limits.host_use = use;
    PlanResult result = search_plans(request);
    if (!result.feasible()) {
      lack = result.infeasible;
    } else if (!best || result.best().prediction.step < best->best().prediction.step) {
      best = std::move(result);
    }
  }
  if (!best) {
    without.infeasible += fmt::format(". With all that hosts may keep: {}", lack);
    return without;
  }
  const std::vector<std::string> lines = explain_hosts(request, best->best().plan, without.infeasible);
  best->explanation.insert(best->explanation.begin(), lines.begin(), lines.end());
  return std::move(*best);
}

}  // namespace

PlanResult find_plan(const PlanRequest& request) {
  const PlanRequest settled = checked(request);
  PlanResult result = search_plans(settled);
  if (result.feasible() || !settled.limits.offload || !has_hosts(settled.cluster)) return result;
  return search_with_hosts(settled, std::move(result));
}

}  // namespace hetermoe
