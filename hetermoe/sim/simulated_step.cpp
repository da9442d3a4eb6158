#include "hetermoe/sim/simulated_step.h"

#include <algorithm>

#include "hetermoe/cost/price.h"

namespace hetermoe {

SimulatedStep simulate_step(const Schedule& schedule, const Placement& priced, const Placement& held,
                            const ModelConfig& model, const Cluster& cluster, const CostModel& cost,
                            const RoutingLoad& routing, i32 tiles) {
  SimulatedStep out;
  // Where steps overlap, memory is that of all of them.
  const Schedule all = schedule.overlaps() ? repeat(schedule, kSteadySteps) : schedule;
  OpCosts costs = price(all, priced, model, cluster, cost, routing);
  costs.tiles = tiles;
  const OpTimes times = Simulator().run(all, costs);
  out.times = schedule.overlaps() ? steady_step(schedule, times) : times;
  if (!out.times.end.empty()) out.alone = *std::max_element(out.times.end.begin(), out.times.end.end());
  out.memory = peak_memory(all, times, held, model, cluster, routing);
  return out;
}

Json to_json(const MemoryUse& use) {
  return {{"weights", use.weights}, {"gradients", use.gradients}, {"optimizer", use.optimizer},
          {"saved", use.saved},     {"in_flight", use.in_flight}, {"workspace", use.workspace},
          {"total", use.total()}};
}

MemoryUse memory_use_from(const Json& json) {
  const auto at = [&](const char* key) { return json.value(key, 0.0); };
  return {at("weights"), at("gradients"), at("optimizer"), at("saved"), at("in_flight"), at("workspace")};
}

}  // namespace hetermoe
