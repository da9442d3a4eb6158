#pragma once
#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// The search of find_plan() over plans of one HostUse. request: as request_check.h has settled it.
PlanResult search_plans(const PlanRequest& request);

}  // namespace hetermoe
