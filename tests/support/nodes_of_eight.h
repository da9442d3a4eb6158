#pragma once
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/cluster/cluster.h"

namespace hetermoe::testing {

/// `count` devices of each type, eight to a node with NVLink.
inline Cluster nodes_of_eight(const std::vector<std::pair<std::string, i32>>& types) {
  Cluster cluster;
  cluster.name = "nodes of eight";
  for (const auto& [name, count] : types) {
    cluster.types.push_back(catalogue_device(name, "test"));
    for (i32 d = 0; d < count; ++d) {
      if (d % 8 == 0)
        cluster.nodes.push_back({fmt::format("n{}", cluster.nodes.size()), 25e9, 1e-5, 300e9, 5e-6});
      cluster.devices.push_back(
          {static_cast<i32>(cluster.types.size()) - 1, static_cast<NodeId>(cluster.nodes.size()) - 1, 1});
    }
  }
  return cluster;
}

}  // namespace hetermoe::testing
