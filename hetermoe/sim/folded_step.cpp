#include "hetermoe/sim/folded_step.h"

#include <algorithm>
#include <limits>

#include "hetermoe/base/index.h"
#include "hetermoe/schedule/builder.h"

namespace hetermoe {

std::vector<Seconds> FoldedStep::busy_seconds(const OpTimes& times) const {
  std::vector<Seconds> busy(fold.device.size(), 0);
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const auto i = static_cast<std::size_t>(op);
    if (!is_compute(schedule.ops[i].kind)) continue;
    const PlaceId place = device_of(schedule.lanes_of(op)[0]);
    if (place < schedule.num_devices) busy[static_cast<std::size_t>(place)] += times.end[i] - times.start[i];
  }
  for (std::size_t d = 0; d < busy.size(); ++d) busy[d] = busy[static_cast<std::size_t>(fold.device[d])];
  return busy;
}

namespace {

/// Listed devices that have a part of a layer of a group.
i64 num_listed(const Placement& placement, i32 group, i32 layer, const std::vector<bool>& listed) {
  std::vector<DeviceId> devices;
  for (const TokenRange range : placement.ranges(group, layer, 0)) devices.push_back(range.device);
  if (placement.is_moe(layer)) {
    const std::vector<DeviceId>& owners = placement.owners(group, layer);
    devices.insert(devices.end(), owners.begin(), owners.end());
  }
  std::sort(devices.begin(), devices.end());
  devices.erase(std::unique(devices.begin(), devices.end()), devices.end());
  return std::count_if(devices.begin(), devices.end(), [&](DeviceId d) { return listed[idx(d)]; });
}

/// A layer has so many ops of each kind per microbatch, forward and backward, on each device with a part of
/// it.
i64 expected_visits(const Placement& placement, const Fold& fold) {
  const std::vector<bool> listed = fold.listed();
  i64 sum = 0;
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    if (fold.group[idx(g)] != g) continue;  // none of its devices is listed
    i64 devices = 0;
    for (i32 l = 0; l < placement.num_layers(); ++l) devices += num_listed(placement, g, l, listed);
    sum += devices * placement.num_microbatches(g);
  }
  return sum * (4 + 4 * placement.plan().chunks);
}

}  // namespace

std::optional<FoldedStep> make_folded_step_within(i64 max_visits, const Plan& plan, const ModelConfig& model,
                                                  const Cluster& cluster, const CostModel& cost,
                                                  const RoutingLoad& routing, const StepOptions& options) {
  FoldedStep step;
  step.placement = std::make_unique<Placement>(plan, model, options);
  LoadTable loads(*step.placement, routing);
  // Groups and teams that turn out not to share their ports evenly keep their own ops.
  for (const FoldScope scope : {FoldScope::kGroups, FoldScope::kTeams, FoldScope::kDevices}) {
    std::optional<Fold> fold = find_fold(*step.placement, model, cluster, loads, scope);
    if (!fold) continue;
    if (expected_visits(*step.placement, *fold) > max_visits) return {};
    step.fold = std::move(*fold);
    step.schedule =
        build_schedule(*step.placement, uses_hosts(plan) ? std::vector<bool>() : step.fold.listed());
    std::optional<OpCosts> costs =
        price_folded(step.schedule, *step.placement, model, cluster, cost, loads, step.fold);
    if (!costs) continue;
    step.costs = std::move(*costs);
    return step;
  }
  HM_CHECK(false, "a fold of devices can always be priced");
  return step;
}

Timeline listed_timeline(const FoldedStep& step, const OpTimes& times, const Cluster& cluster) {
  Timeline all = make_timeline(step.schedule, times, step.placement->plan(), cluster, "simulated");
  std::vector<DeviceId> number(all.devices.size(), -1);
  std::vector<TimelineDevice> listed;
  for (Span& span : all.spans) {
    DeviceId& mapped = number[idx(span.device)];
    if (mapped < 0) {
      mapped = static_cast<DeviceId>(listed.size());
      listed.push_back(all.devices[idx(span.device)]);
    }
    span.device = mapped;
  }
  for (std::size_t d = 0; d < step.fold.device.size(); ++d) {
    const DeviceId shown = number[idx(step.fold.device[d])];
    if (shown >= 0 && step.fold.device[d] != static_cast<DeviceId>(d)) ++listed[idx(shown)].stands_for;
  }
  all.devices = std::move(listed);
  return all;
}

FoldedStep make_folded_step(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                            const CostModel& cost, const RoutingLoad& routing, const StepOptions& options) {
  return *make_folded_step_within(std::numeric_limits<i64>::max(), plan, model, cluster, cost, routing,
                                  options);
}

}  // namespace hetermoe
