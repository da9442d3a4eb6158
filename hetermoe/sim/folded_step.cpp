#include "hetermoe/sim/folded_step.h"

#include "hetermoe/schedule/builder.h"

namespace hetermoe {

std::vector<Seconds> FoldedStep::busy_seconds(const OpTimes& times) const {
  std::vector<Seconds> busy(fold.device.size(), 0);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const auto i = static_cast<std::size_t>(op);
    if (!is_compute(schedule.ops[i].kind)) continue;
    busy[static_cast<std::size_t>(device_of(schedule.lanes_of(op)[0]))] += times.end[i] - times.start[i];
  }
  for (std::size_t d = 0; d < busy.size(); ++d) busy[d] = busy[static_cast<std::size_t>(fold.device[d])];
  return busy;
}

FoldedStep make_folded_step(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                            const CostModel& cost, const RoutingLoad& routing, const StepOptions& options) {
  FoldedStep step;
  step.placement = std::make_unique<Placement>(plan, model, options);
  LoadTable loads(*step.placement, routing);
  // Groups that turn out not to share their ports evenly keep their own ops.
  for (const FoldScope scope : {FoldScope::kGroups, FoldScope::kDevices}) {
    std::optional<Fold> fold = find_fold(*step.placement, cluster, loads, scope);
    if (!fold) continue;
    step.fold = std::move(*fold);
    step.schedule = build_schedule(*step.placement, step.fold.listed());
    std::optional<OpCosts> costs =
        price_folded(step.schedule, *step.placement, model, cluster, cost, loads, step.fold);
    if (!costs) continue;
    step.costs = std::move(*costs);
    return step;
  }
  HM_CHECK(false, "a fold of devices can always be priced");
  return step;
}

}  // namespace hetermoe
