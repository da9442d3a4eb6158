#pragma once
#include <string>
#include <vector>

#include "tests/support/random_request.h"

// Requests, and the same ones with more to choose from: no plan should get slower by that.
namespace hetermoe::testing {

/// 1 to 4 types on nodes of one or two devices, whose links differ from node to node: 2 to 12 devices.
inline PlanRequest uneven_request(u64 seed) {
  RequestSizes sizes;
  sizes.types = 4;
  sizes.nodes = 2;
  sizes.per_node = {1, 2};
  sizes.models = {"d1", "w1", "olmoe-1b-7b"};
  PlanRequest request = random_request(seed, sizes);
  Cluster& cluster = request.cluster;
  while (cluster.devices.size() > 12) cluster.devices.pop_back();
  if (cluster.devices.size() == 1) cluster.devices.push_back(cluster.devices[0]);
  Chooser choose(seed + 1'000'000);
  for (Node& node : cluster.nodes) {
    const std::vector<double> factors = {0.1, 0.5, 1, 1, 4};
    node.network *= factors[static_cast<std::size_t>(choose.below(5))];
    node.local *= factors[static_cast<std::size_t>(choose.below(5))];
  }
  return request;
}

struct More {
  std::string what;
  PlanRequest request;
};

/// One more device on a node of its own, which is like that of the first device of the type.
inline void add_device(Cluster& cluster, i32 type) {
  const std::vector<DeviceId> alike = cluster.devices_of_type(type);
  Device device = cluster.devices[static_cast<std::size_t>(alike.empty() ? 0 : alike.front())];
  cluster.nodes.push_back(cluster.nodes[static_cast<std::size_t>(device.node)]);
  device.type = type;
  device.node = static_cast<NodeId>(cluster.nodes.size()) - 1;
  cluster.devices.push_back(device);
}

/// A device of each type, of a new type, on a node that is there; memory; links of all nodes and of one;
/// devices that must stay out.
inline std::vector<More> more_requests(const PlanRequest& request) {
  std::vector<More> all;
  const auto add = [&](const std::string& what, auto change) {
    all.push_back({what, request});
    change(all.back().request);
  };
  for (std::size_t t = 0; t < request.cluster.types.size(); ++t) {
    const auto type = static_cast<i32>(t);
    if (request.cluster.devices_of_type(type).empty()) continue;
    add("a device more of " + request.cluster.types[t].name,
        [&](PlanRequest& r) { add_device(r.cluster, type); });
  }
  add("a device more on the first node",
      [](PlanRequest& r) { r.cluster.devices.push_back(r.cluster.devices.front()); });
  add("another type", [](PlanRequest& r) {
    r.cluster.types.push_back(catalogue_device("L4", "test"));
    const auto type = static_cast<i32>(r.cluster.types.size()) - 1;
    add_device(r.cluster, type), add_device(r.cluster, type);
  });
  add("memory", [](PlanRequest& r) {
    for (DeviceType& type : r.cluster.types) type.memory_gib *= 1.25;
  });
  add("network", [](PlanRequest& r) {
    for (Node& node : r.cluster.nodes) node.network *= 1.5, node.local *= 1.5;
  });
  add("network of the last node", [](PlanRequest& r) { r.cluster.nodes.back().network *= 2; });
  add("devices that stay out", [](PlanRequest& r) {
    r.cluster.devices.insert(r.cluster.devices.begin(), r.cluster.devices.back());
    r.limits.idle = {0};
  });
  return all;
}

inline double rate_of(const PlanRequest& request) {
  const PlanResult result = find_plan(request);
  return result.feasible() ? result.best().prediction.tokens_per_s : 0;
}

}  // namespace hetermoe::testing
