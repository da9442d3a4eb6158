#pragma once
#include <vector>

#include "hetermoe/routing/domain_use.h"

namespace hetermoe {

/// The history of a balancer from the steps before; checkpoints keep it.
struct BalancerHistory {
  std::vector<std::vector<double>> loads;  ///< [layers with experts][experts] mean copies; empty = none yet
  /// [num_devices] mean over steps of how many times as long as the fastest device of its kind a device
  /// takes, beyond what the cluster file says; empty = none yet.
  std::vector<double> slowness;
  DomainUse use;  ///< empty = none yet, or the balancer does not use domains
};

}  // namespace hetermoe
