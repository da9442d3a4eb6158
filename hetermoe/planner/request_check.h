#pragma once
#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// The request with `sequences` settled. Throws ConfigError when it makes no sense.
PlanRequest checked(PlanRequest request);

}  // namespace hetermoe
