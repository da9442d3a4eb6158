#pragma once
#include "hetermoe/base/fields.h"
#include "hetermoe/cluster/cluster.h"

namespace hetermoe {

/// Devices, nodes, links and hosts of a cluster, and which experts hide what their links carry.
Json cluster_json(const Cluster& cluster);
void print_cluster(const Cluster& cluster);

}  // namespace hetermoe
