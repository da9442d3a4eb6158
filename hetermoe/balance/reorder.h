#pragma once
#include <vector>

#include "hetermoe/balance/balancers.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

/// Which device has which expert, so that the devices of each microbatch end together.
struct ReorderInput {
  std::vector<std::vector<double>> copies;  ///< [microbatches][experts]
  std::vector<double> speeds;               ///< [devices]
  std::vector<NodeId> nodes;                ///< [devices]
  /// Weight of the latest node beside that of the latest device: guests even out what is inside a node.
  double node_weight = 0;
  /// Ports of nodes with sources or owners: in each microbatch the busiest counts beside the latest device.
  /// Tokens of a node are assumed to choose like all tokens.
  std::vector<NodePort> ports = {};
  i64 proposals = 20000;
  u64 seed = 1;
};

/// Sum over microbatches of what the latest device takes, plus node_weight times the latest node's time, plus
/// what the busiest port takes.
double reorder_cost(const ReorderInput& input, const std::vector<i32>& owner);

/// Annealing by swaps of two experts of different devices, so that numbers of experts stay as `start` has
/// them. start, result: [experts] devices. Never costs more than `start`; equal arguments give equal results
/// on one machine.
std::vector<i32> reorder(const ReorderInput& input, const std::vector<i32>& start);

}  // namespace hetermoe
