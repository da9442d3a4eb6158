#include "hetermoe/plan/nics.h"

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/cluster/network.h"

namespace hetermoe {
namespace {

/// Devices that the plan uses and their hosts, node by node; none where all are on one node.
std::vector<std::vector<PlaceId>> users_of_network(const Plan& plan, const Cluster& cluster) {
  std::vector<std::vector<PlaceId>> users(cluster.nodes.size());
  std::set<NodeId> nodes;
  for (const Group& group : plan.groups) {
    for (const DeviceId device : group.devices) {
      const NodeId node = cluster.node_of(device);
      if (nodes.insert(node).second && uses_hosts(plan))
        users[idx(node)].push_back(cluster.num_devices() + node);
      users[idx(node)].push_back(device);
    }
  }
  if (nodes.size() < 2) users.assign(users.size(), {});
  return users;
}

}  // namespace

std::vector<i64> nics_of_devices(const std::vector<i64>& asked, const Cluster& cluster) {
  if (asked.size() == 1) return std::vector<i64>(cluster.devices.size(), asked[0]);
  if (!asked.empty() && asked.size() != cluster.devices.size())
    fail<ConfigError>("plan.nics",
                      "got {} numbers, expected one for all devices of cluster {}, or one each ({})",
                      asked.size(), cluster.name, cluster.num_devices());
  return asked;
}

std::vector<std::string> nic_faults(const Plan& plan, const Cluster& cluster) {
  if (plan.nics.empty()) return {};
  if (static_cast<i32>(plan.nics.size()) != cluster.num_devices()) {
    return {fmt::format("[nics] has {} entries, expected one per device of the cluster ({})",
                        plan.nics.size(), cluster.num_devices())};
  }
  std::vector<std::string> faults;
  const std::vector<i64> shared = shared_nics(cluster, plan.nics);
  const std::vector<std::vector<PlaceId>> users = users_of_network(plan, cluster);
  for (std::size_t n = 0; n < cluster.nodes.size(); ++n) {
    const Node& node = cluster.nodes[n];
    if (shared[n] < 0) {
      faults.push_back(
          fmt::format("[nics] devices of node {} have {} for themselves, expected at most the {} of the "
                      "node. Give fewer, or "
                      "state in the cluster file how many it has, such as nics: {}",
                      node.name, counted(node.nics - shared[n], "NIC"), node.nics, node.nics - shared[n]));
    }
    if (shared[n] != 0) continue;
    for (const PlaceId place : users[n]) {
      if (place < cluster.num_devices() && plan.nics[idx(place)] > 0) continue;
      faults.push_back(
          fmt::format("[nics] {} {} needs the network, but other devices of node {} have all of its NICs "
                      "({}): expected one "
                      "that it has or shares",
                      place < cluster.num_devices() ? fmt::format("device {}:", place) : "the",
                      cluster.device_name(place), node.name, node.nics));
      break;
    }
  }
  return faults;
}

}  // namespace hetermoe
