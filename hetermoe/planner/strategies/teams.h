#pragma once
#include <vector>

#include "hetermoe/cost/cost_model.h"
#include "hetermoe/planner/strategies/strategies.h"

// Teams: devices that share sequences (MegaScale-MoE, arXiv 2505.11432, section 3; docs/teams.md).
namespace hetermoe {

/// Rows for all microbatches in which devices share sequences in teams: `request.team` devices in each, in
/// the order of the list. A team has sequences by the sum of its weights, a device tokens by its attention
/// weight and heads by its head weight: whole key-value groups where there is one for each device of the
/// team. Throws ConfigError where the lists do not fit the devices.
Shares make_team_rows(const ModelConfig& model, const StrategyRequest& request,
                      const std::vector<DeviceId>& devices, const std::vector<i64>& microbatches);

/// How fast a device computes what a team shares by tokens, and what it shares by heads.
struct TeamSpeeds {
  std::vector<double> tokens, heads;  ///< [devices]
};
TeamSpeeds team_speeds(const ModelConfig& model, const CostModel& cost, const std::vector<DeviceId>& devices,
                       i64 seq_len);

}  // namespace hetermoe
