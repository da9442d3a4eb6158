#pragma once
#include <vector>

#include "hetermoe/cost/cost_model.h"

namespace hetermoe {

/// Of guests whose price is asked for.
struct GuestTerms {
  i64 slots = 0;          ///< for guests on each device
  bool foreseen = false;  ///< who lends what is known before the exchange
};

/// [owners of the layer] whole copies that a device computes in the time that a guest costs it: its launches,
/// its weights through memory, and of their way from the next device what is waited for. Near `copies` copies
/// on a device. That is the way of the weights forward where nobody knows of the guest before the exchange.
/// Where it is foreseen, it is the way of weights, forward and backward, and of gradients, beyond what
/// computing hides. An exchange hides as long as a device computes in it, shared by all guests that a device
/// may lend.
std::vector<i64> guest_costs(const CostModel& cost, const Placement& placement, const ModelConfig& model,
                             const Cluster& cluster, i32 group, i32 layer, double copies,
                             const GuestTerms& terms);

}  // namespace hetermoe
