#pragma once
#include <vector>

#include "hetermoe/ops/buffer_sizes.h"
#include "hetermoe/schedule/lifetimes.h"
#include "hetermoe/sim/simulator.h"

// Memory per device, from the same schedule, access table and routing load as the times.
namespace hetermoe {

/// The worst moment of a step on a device.
struct MemoryPeak {
  MemoryUse use;
  Seconds time = 0;
};

/// [num_places] the worst moment of each device and host when ops run at these times. A buffer lives from the
/// start of its first writer to the end of its last reader.
std::vector<MemoryPeak> peak_memory(const Schedule& schedule, const OpTimes& times, BufferSizes& sizes,
                                    const Lifetimes& lifetimes);

/// The same from the parts that a prediction has at hand.
std::vector<MemoryPeak> peak_memory(const Schedule& schedule, const OpTimes& times,
                                    const Placement& placement, const ModelConfig& model,
                                    const Cluster& cluster, const RoutingLoad& routing, double margin = 1);

}  // namespace hetermoe
