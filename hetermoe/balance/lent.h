#pragma once
#include "hetermoe/cost/cost_model.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe {

/// Bytes and time of the guests of a simulated step, and how much of it other work hides.
struct Lent {
  Bytes weights = 0, gradients = 0;  ///< to guests, and home
  Seconds seconds = 0;               ///< of all ops lend and settle that carry something
  Seconds hidden = 0;                ///< of these, what no other work had to wait for

  double hidden_share() const { return seconds > 0 ? hidden / seconds : 1; }
};

Lent lent_in(const Schedule& schedule, const OpTimes& times, const Placement& placement,
             const ModelConfig& model, const Cluster& cluster, const RoutingLoad& routing);

}  // namespace hetermoe
