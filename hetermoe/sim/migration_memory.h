#pragma once
#include <vector>

#include "hetermoe/plan/migration.h"

namespace hetermoe {

/// [num_devices] the most bytes of parameters, gradients and optimizer state that each device holds at once
/// while the model goes from one plan to the other, layer by layer: all that it holds, the new storages of
/// the layer beside the old ones, and what arrives for them.
std::vector<Bytes> migration_memory(const Plan& before, const Plan& after, const ModelConfig& model,
                                    const Cluster& cluster, const MoveOptions& options = {});

}  // namespace hetermoe
