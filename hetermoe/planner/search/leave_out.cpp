#include "hetermoe/planner/search/leave_out.h"

#include <algorithm>
#include <map>
#include <utility>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr double kSlowLink = 0.5;               ///< of the fastest one of a type
constexpr std::size_t kFewDevicesOfParts = 16;  ///< that may be searched without a type
constexpr std::size_t kVeryFew = 8;             ///< that may be searched without one device of a type

/// Devices whose figure is below such a part of the highest one of their type.
template <class Figure>
std::vector<DeviceId> below_most(const Cluster& cluster, Figure figure, double part) {
  std::map<i32, double> most;
  for (const Device& device : cluster.devices)
    most[device.type] = std::max(most[device.type], figure(device));
  std::vector<DeviceId> below;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const Device& device = cluster.devices[idx(d)];
    if (figure(device) < part * most[device.type]) below.push_back(d);
  }
  return below;
}

/// Devices of nodes that have fewer of a type than others.
std::vector<DeviceId> outside_full_nodes(const Cluster& cluster) {
  std::map<std::pair<i32, NodeId>, i64> count;
  for (const Device& device : cluster.devices) ++count[{device.type, device.node}];
  return below_most(
      cluster,
      [&](const Device& device) {
        return real(count.at({device.type, device.node}));
      },
      1);
}

/// Devices that nodes have beyond the fewest of their type on a node.
std::vector<DeviceId> beyond_even_nodes(const Cluster& cluster) {
  std::map<i32, std::map<NodeId, i64>> counts;  // [type][node]
  for (const Device& device : cluster.devices) ++counts[device.type][device.node];
  std::vector<DeviceId> beyond;
  for (DeviceId d = cluster.num_devices() - 1; d >= 0; --d) {
    std::map<NodeId, i64>& of_type = counts[cluster.devices[idx(d)].type];
    i64& here = of_type[cluster.devices[idx(d)].node];
    const auto fewest = std::ranges::min_element(of_type, {}, [](const auto& node) { return node.second; });
    if (here > fewest->second) --here, beyond.push_back(d);
  }
  std::ranges::sort(beyond);
  return beyond;
}

/// Devices whose links are much slower than those of others of their type.
std::vector<DeviceId> on_slow_nodes(const Cluster& cluster) {
  const auto network = [&](const Device& device) { return cluster.nodes[idx(device.node)].network; };
  const auto local = [&](const Device& device) { return cluster.nodes[idx(device.node)].local; };
  std::vector<DeviceId> slow = below_most(cluster, network, kSlowLink);
  const std::vector<DeviceId> inside = below_most(cluster, local, kSlowLink);
  slow.insert(slow.end(), inside.begin(), inside.end());
  std::sort(slow.begin(), slow.end());
  slow.erase(std::unique(slow.begin(), slow.end()), slow.end());
  return slow;
}

/// [type] Of two types both alone are searched anyway.
std::vector<std::vector<DeviceId>> of_idle_types(const Cluster& cluster, const Plan& best) {
  std::map<i32, std::vector<DeviceId>> of_type;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) of_type[cluster.devices[idx(d)].type].push_back(d);
  std::vector<std::vector<DeviceId>> all;
  if (of_type.size() < 3 || cluster.devices.size() > kFewDevicesOfParts || best.groups.empty()) return all;
  for (const Group& group : best.groups)
    for (const DeviceId d : group.devices) of_type.erase(cluster.devices[idx(d)].type);
  for (auto& [type, idle] : of_type) all.push_back(std::move(idle));
  return all;
}

/// The last device of each type that has several.
std::vector<std::vector<DeviceId>> last_of_types(const Cluster& cluster) {
  std::vector<std::vector<DeviceId>> all;
  for (std::size_t type = 0; type < cluster.types.size(); ++type) {
    const std::vector<DeviceId> devices = cluster.devices_of_type(static_cast<i32>(type));
    if (devices.size() > 1) all.push_back({devices.back()});
  }
  return all;
}

}  // namespace

std::vector<std::vector<DeviceId>> devices_to_leave_out(const Cluster& cluster, const Plan& best) {
  std::vector<std::vector<DeviceId>> all;
  const auto add = [&](const std::vector<DeviceId>& devices) {
    if (devices.empty() || devices.size() == cluster.devices.size()) return;
    if (std::ranges::find(all, devices) == all.end()) all.push_back(devices);
  };
  for (const std::vector<DeviceId>& idle : of_idle_types(cluster, best)) add(idle);
  add(outside_full_nodes(cluster));
  if (cluster.devices.size() <= kFewDevicesOfParts) add(beyond_even_nodes(cluster));
  add(on_slow_nodes(cluster));
  if (cluster.devices.size() <= kVeryFew)
    for (const std::vector<DeviceId>& last : last_of_types(cluster)) add(last);
  return all;
}

}  // namespace hetermoe
