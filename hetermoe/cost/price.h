#pragma once
#include <optional>
#include <vector>

#include "hetermoe/cost/cost_model.h"
#include "hetermoe/cost/fold.h"

namespace hetermoe {

/// The cost of every op of a schedule, as flat arrays. With the schedule this is the whole input of the
/// simulator.
struct OpCosts {
  std::vector<Seconds> seconds;  ///< [num_ops] alone on its links
  std::vector<Seconds> latency;  ///< [num_ops] of transfers: the part that needs no port
  std::vector<i64> load_begin;   ///< [num_ops + 1] into `loads`
  std::vector<PortLoad> loads;   ///< of transfers; ports that all transfers load alike are one
  i32 num_ports = 0;
  std::vector<double> interference;  ///< [num_devices] share of compute speed lost during a transfer
  /// Experts compute in so many tiles, whose rows arrive one after another: an op starts when those of its
  /// first tile are there, and ends a tile's time after the last rows came at the earliest. 0 = all at once.
  i32 tiles = 0;
};

OpCosts price(const Schedule& schedule, const Placement& placement, const ModelConfig& model,
              const Cluster& cluster, const CostModel& cost, const RoutingLoad& routing);

/// Prices a schedule that lists the representatives of `fold` only; ports keep the load of all devices. Empty
/// when transfers that the fold takes for one load their ports in different ways.
std::optional<OpCosts> price_folded(const Schedule& schedule, const Placement& placement,
                                    const ModelConfig& model, const Cluster& cluster, const CostModel& cost,
                                    LoadTable& loads, const Fold& fold);

}  // namespace hetermoe
