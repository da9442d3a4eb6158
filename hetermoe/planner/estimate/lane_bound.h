#pragma once
#include "hetermoe/planner/estimate/rates.h"

namespace hetermoe {

/// A time that no step of the plan goes below: the compute ops of the busiest device, one after another.
Seconds lane_bound(const Rates& rates, const Plan& plan);

}  // namespace hetermoe
