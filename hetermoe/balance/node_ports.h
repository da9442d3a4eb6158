#pragma once
#include <vector>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/cost/cost_model.h"

namespace hetermoe {

/// Ports of the nodes with sources or owners of a layer, for BalanceInput::ports. A copy crosses with its
/// part of a row, as many rows a copy as with even routing under the placement: there and back, forward and
/// backward, and once more where the plan sends rows again. unit: seconds per copy of a device whose unit_s
/// is 1. Empty: all devices share one node, or none does its expert work away from its tokens.
std::vector<NodePort> node_ports(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                                 const Cluster& cluster, i32 group, i32 layer, Seconds unit);

}  // namespace hetermoe
