#include "hetermoe/planner/search/cluster_part.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/planner/search/same_group.h"

namespace hetermoe {
namespace {

/// [device of the whole cluster] what `values` has for it, of others `fill`.
template <class T>
void spread(std::vector<T>& values, const ClusterPart& part, const Cluster& whole, const T& fill) {
  if (values.empty()) return;
  std::vector<T> out(whole.devices.size(), fill);
  for (std::size_t d = 0; d < part.devices.size(); ++d) out[idx(part.devices[d])] = values[d];
  values = std::move(out);
}

}  // namespace

ClusterPart part_without(const Cluster& whole, const std::vector<DeviceId>& idle) {
  ClusterPart part{without(whole, idle), {}};
  std::vector<bool> out(whole.devices.size(), false);
  for (const DeviceId d : idle) out[idx(d)] = true;
  for (DeviceId d = 0; d < whole.num_devices(); ++d)
    if (!out[idx(d)]) part.devices.push_back(d);
  return part;
}

void number_back(Plan& plan, const ClusterPart& part, const PlanRequest& whole) {
  for (Group& group : plan.groups) group = with_devices(group, part.devices);
  spread(plan.dtype, part, whole.cluster, whole.dtype);
  if (uses_hosts(plan)) plan.hosts = nodes_of_devices(whole.cluster);
  if (!plan.row_nodes.empty()) plan.row_nodes = nodes_of_devices(whole.cluster);
}

void number_back(Candidate& candidate, const ClusterPart& part, const PlanRequest& whole) {
  number_back(candidate.plan, part, whole);
  spread(candidate.memory, part, whole.cluster, Bytes{0});
  spread(candidate.unsharded, part, whole.cluster, Bytes{0});
  spread(candidate.prediction.busy, part, whole.cluster, 0.0);
}

}  // namespace hetermoe
