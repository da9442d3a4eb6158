#include "hetermoe/plan/row_nodes.h"

#include <algorithm>
#include <map>
#include <set>

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

bool may_pass_rows_on(const Plan& plan, const Cluster& cluster) {
  for (const Group& group : plan.groups) {
    for (const LayerPlacement& layer : group.layers) {
      std::map<NodeId, std::set<DeviceId>> owners;
      for (const ExpertOwners& of_expert : layer.experts)
        for (const ExpertOwner& owner : of_expert) owners[cluster.node_of(owner.device)].insert(owner.device);
      std::set<NodeId> nodes;
      for_devices(layer.attention, [&](DeviceId device) { nodes.insert(cluster.node_of(device)); });
      for (const auto& [node, devices] : owners)
        if (devices.size() > 1 && (nodes.size() > 1 || !nodes.contains(node))) return true;
    }
  }
  return false;
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

std::optional<Plan> with_row_nodes(Plan plan, const Cluster& cluster) {
  if (!may_pass_rows_on(plan, cluster)) return std::nullopt;
  plan.row_nodes = nodes_of_devices(cluster);
  if (!row_node_faults(plan, cluster).empty()) return std::nullopt;
  return plan;
}

}  // namespace hetermoe
