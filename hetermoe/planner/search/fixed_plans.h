#pragma once
#include <utility>
#include <vector>

#include "hetermoe/planner/estimate/rates.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {

/// Plans of a strategy as anyone would ask for it, on all devices, each with a lower bound of its step.
std::vector<std::pair<Seconds, Plan>> fixed_plans(const Rates& rates, const Strategy& strategy);

}  // namespace hetermoe
