#pragma once
#include <vector>

#include "hetermoe/cost/cost_model.h"

namespace hetermoe {

/// What every op of a schedule costs, as flat arrays: the whole input of the simulator besides the schedule
/// itself.
struct OpCosts {
  std::vector<Seconds> seconds;  ///< [num_ops] alone on its links
  std::vector<Seconds> latency;  ///< [num_ops] of transfers: the part that needs no port
  std::vector<i64> load_begin;   ///< [num_ops + 1] into `loads`
  std::vector<PortLoad> loads;   ///< of transfers
  i32 num_ports = 0;
  std::vector<double> interference;  ///< [num_devices] share of compute speed lost during a transfer
};

OpCosts price(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
              const Cluster& cluster, const CostModel& cost, const RoutingLoad& routing);

}  // namespace hetermoe
