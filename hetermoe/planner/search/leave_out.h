#pragma once
#include <vector>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Sets of devices without which a cluster may be searched better: those outside full nodes, and those with
/// slow links. In a cluster of up to 16 devices also those that a node has beyond the others of its type. If
/// such a cluster has three types or more, also each type that the best plan so far leaves out. In one of up
/// to 8 devices also the last device of each type. best: may be empty.
std::vector<std::vector<DeviceId>> devices_to_leave_out(const Cluster& cluster, const Plan& best);

}  // namespace hetermoe
