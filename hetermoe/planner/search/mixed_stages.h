#pragma once
#include <utility>
#include <vector>

#include "hetermoe/planner/estimate/rates.h"

namespace hetermoe {

/// Pipelines whose stages have devices of all classes: attention and experts on all of them by speed, or
/// attention on some classes and experts on the others. Each with a lower bound of its step, the lowest
/// first; none at or above `most`. Empty where there is one class, or in large clusters.
std::vector<std::pair<Seconds, Plan>> mixed_pipelines(const Rates& rates, Seconds most);

/// Likewise, of depth groups (strategy af_pipe) with attention on some classes and experts on the others.
/// Without expected times.
std::vector<std::pair<Seconds, Plan>> depth_plans(const Rates& rates, Seconds most);

/// Likewise, of all devices, split as allocate() has them or nearly so, but not between classes. Empty where
/// there is one class or one node, or in large clusters.
std::vector<std::pair<Seconds, Plan>> allocated_depth_plans(const Rates& rates, Seconds most);

}  // namespace hetermoe
