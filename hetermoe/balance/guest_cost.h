#pragma once
#include <vector>

#include "hetermoe/cost/cost_model.h"

namespace hetermoe {

/// Conditions of the guests that are priced.
struct GuestTerms {
  i64 slots = 0;          ///< for guests on each device
  bool foreseen = false;  ///< who lends what is known before the exchange
};

/// [owners of the layer] whole copies that a device computes in the time that a guest costs it, near `copies`
/// copies on a device. The cost is its launches, its weights through memory, and the part of the transfer
/// from the next device for which the device waits. If the guest is not known before the exchange, that is
/// the transfer of the weights forward. If it is foreseen, it is the transfer of weights, forward and
/// backward, and of gradients, beyond the part that computing hides. An exchange hides as much as a device
/// computes in it, shared by all guests that a device may lend.
std::vector<i64> guest_costs(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                             const Cluster& cluster, i32 group, i32 layer, double copies,
                             const GuestTerms& terms);

}  // namespace hetermoe
