#pragma once
#include <vector>

#include "hetermoe/routing/split_routing.h"

namespace hetermoe {

/// How many copies of each expert each device of a group computes in one layer.
struct DeviceLoads {
  i64 layer = 0;
  i32 group = 0;
  std::vector<DeviceId> devices;            ///< owners of the layer, ascending
  std::vector<double> speeds;               ///< [devices] at expert work
  std::vector<std::vector<double>> copies;  ///< [devices][experts] of the step
  std::vector<std::vector<double>> lent;    ///< [devices][experts] of them, of experts that are guests there
};

/// Loads of all layers with experts and all groups, for one step; the caller fills in speeds. routing: not
/// divided at will, because then no device has particular experts.
std::vector<DeviceLoads> device_loads(const TraceRouting& trace, const SplitRouting& routing,
                                      const Placement& placement);

/// Time of each device for its copies, over the time of all if copies could be divided at will.
std::vector<double> device_times(const DeviceLoads& loads);

}  // namespace hetermoe
