#pragma once
#include <memory>
#include <optional>

#include "hetermoe/cost/price.h"
#include "hetermoe/sim/simulator.h"

namespace hetermoe {

/// One step of a plan, ready to simulate, with devices that do the same at the same time listed once. Gives
/// the times of the full schedule, but for rounding.
struct FoldedStep {
  std::unique_ptr<Placement> placement;
  Fold fold;
  Schedule schedule;
  OpCosts costs;

  /// [num_devices] seconds that each device spends in compute ops, folded devices as their representatives.
  std::vector<Seconds> busy_seconds(const OpTimes& times) const;
};

/// Timeline of the devices that are listed in the fold alone. Each stands for those that do the same, and
/// says how many they are.
Timeline listed_timeline(const FoldedStep& step, const OpTimes& times, const Cluster& cluster);

/// Keeps a reference to the plan. cost: must tell devices apart by type, speed, dtype and work alone.
FoldedStep make_folded_step(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                            const CostModel& cost, const RoutingLoad& routing,
                            const StepOptions& options = {});

/// The same, but empty when that would be more than `max_visits` visits of an op to a device, roughly: a
/// search has no time for such plans.
std::optional<FoldedStep> make_folded_step_within(i64 max_visits, const Plan& plan, const ModelConfig& model,
                                                  const Cluster& cluster, const CostModel& cost,
                                                  const RoutingLoad& routing,
                                                  const StepOptions& options = {});

}  // namespace hetermoe
