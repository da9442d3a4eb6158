#pragma once
#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// The search of find_plan() over plans of one HostUse. request: as request_check.h has settled it.
PlanResult search_plans(const PlanRequest& request);

/// The first plan of one HostUse that is found to have room, however slow it is; nothing = none is found.
std::optional<Plan> search_any_plan(const PlanRequest& request);

}  // namespace hetermoe
