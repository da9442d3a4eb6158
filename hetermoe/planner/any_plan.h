#pragma once
#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// A plan that find_plan() has to find at least, with room for even routing: a short search that only asks
/// whether there is one.
std::optional<Plan> find_any_plan(const PlanRequest& request);

}  // namespace hetermoe
