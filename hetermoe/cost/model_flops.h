#pragma once
#include <vector>

#include "hetermoe/cost/cost_model.h"

namespace hetermoe {

/// FLOPs of the model in an op: products and scores forward and their gradients, for model FLOPs utilisation.
/// Recomputation does not count, nor do gradients of frozen weights.
Flops model_flops(const ComputeWork& work, const ModelConfig& model, WeightGradients gradients);

/// [num_devices] of a step, of `devices`; 0 of others. routing: of the exchanges that these take part in.
std::vector<Flops> model_flops(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
                               const Cluster& cluster, const RoutingLoad& routing,
                               const std::vector<DeviceId>& devices);

}  // namespace hetermoe
