#pragma once
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/sim/memory.h"

namespace hetermoe {

/// Times and memory of one simulated step.
struct SimulatedStep {
  OpTimes times;                   ///< of a schedule that overlaps the steady_step()
  Seconds alone = 0;               ///< from its first op to its last: more than the step where steps overlap
  std::vector<MemoryPeak> memory;  ///< [place]
};

/// priced: what `cost` prices. held: what lies in memory; the same placement, or one with other dtypes.
/// tiles: see OpCosts.
SimulatedStep simulate_step(const Schedule& schedule, const Placement& priced, const Placement& held,
                            const ModelConfig& model, const Cluster& cluster, const CostModel& cost,
                            const RoutingLoad& routing, i32 tiles = 0);

/// Bytes by what they are for, and "total".
Json to_json(const MemoryUse& use);
/// Reads that back; missing keys are 0.
MemoryUse memory_use_from(const Json& json);

}  // namespace hetermoe
