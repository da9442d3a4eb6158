#pragma once
#include <vector>

#include "hetermoe/cost/cost_model.h"

namespace hetermoe {

/// [owners of the layer] whole copies that a device computes in the time that a guest costs it: its launches,
/// its weights through memory, and, where nobody knows of it before the exchange (`foreseen` false), their
/// way from the next device. Near `copies` copies on a device.
std::vector<i64> guest_costs(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                             const Cluster& cluster, i32 group, i32 layer, double copies, bool foreseen);

}  // namespace hetermoe
