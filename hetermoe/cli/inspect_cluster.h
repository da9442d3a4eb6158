#pragma once
#include <optional>

#include "hetermoe/base/fields.h"
#include "hetermoe/cluster/cluster.h"
#include "hetermoe/model/model_config.h"

namespace hetermoe {

/// Devices, nodes, links and hosts of a cluster, and which experts hide what their links carry; with a model
/// how far its experts do.
Json cluster_json(const Cluster& cluster, const std::optional<ModelConfig>& model);
void print_cluster(const Cluster& cluster, const std::optional<ModelConfig>& model);

}  // namespace hetermoe
