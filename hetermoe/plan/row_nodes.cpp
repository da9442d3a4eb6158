#include "hetermoe/plan/row_nodes.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {
namespace {

/// The setting that cannot go with it, in words; empty = none.
std::string excluded(const Plan& plan) {
  if (!plan.row_dedup) return "row_dedup off";
  if (plan.tally || plan.foreseen) return "copies that are divided by their counts (tally, or foreseen)";
  if (plan.guest_slots > 0) return "guest_slots";
  if (plan.combine_to == CombineTo::kNext) return "combine_to next";
  for (const Group& group : plan.groups)
    if (std::any_of(group.layers.begin(), group.layers.end(), roams)) return "experts_at sources";
  return "";
}

}  // namespace

std::vector<NodeId> nodes_of_devices(const Cluster& cluster) {
  std::vector<NodeId> nodes;
  for (const Device& device : cluster.devices) nodes.push_back(device.node);
  return nodes;
}

std::vector<std::string> row_node_faults(const Plan& plan, const Cluster& cluster) {
  if (plan.row_nodes.empty()) return {};
  if (plan.row_nodes != nodes_of_devices(cluster))
    return {fmt::format("[row_nodes] are not the nodes of the {} of {}: expected these, or none",
                        counted(cluster.devices.size(), "device"), cluster.name)};
  if (const std::string what = excluded(plan); !what.empty())
    return {
        fmt::format("[row_nodes] got nodes (plan.node_dedup) in a plan with {}, which no such plan may have: "
                    "expected none",
                    what)};
  return {};
}

}  // namespace hetermoe
