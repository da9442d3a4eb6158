#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Plan::row_nodes of a cluster.
std::vector<NodeId> nodes_of_devices(const Cluster& cluster);

/// What validate() finds in Plan::row_nodes: other nodes than those of the cluster, and settings that it
/// excludes.
std::vector<std::string> row_node_faults(const Plan& plan, const Cluster& cluster);

/// Some layer has several owners on a node, and sources on another one: rows would be passed on.
bool may_pass_rows_on(const Plan& plan, const Cluster& cluster);

/// The plan with Plan::row_nodes. None: no row would be passed on, or a setting of the plan excludes it.
std::optional<Plan> with_row_nodes(Plan plan, const Cluster& cluster);

}  // namespace hetermoe
