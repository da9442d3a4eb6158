#pragma once
#include "hetermoe/cluster/cluster.h"

namespace hetermoe::testing {

/// The cluster with a host of 64 GiB for each node.
inline Cluster with_hosts(Cluster cluster) {
  for (Node& node : cluster.nodes) node.host = NodeHost{.memory_gib = 64};
  return cluster;
}

}  // namespace hetermoe::testing
