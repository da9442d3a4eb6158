#pragma once
#include <vector>

#include "hetermoe/planner/estimate/rates.h"

namespace hetermoe {

/// There are fewer sequences than devices, or one sequence takes much of the memory of a device.
bool may_need_teams(const Rates& rates);
/// Plans in which teams share sequences: in groups, and in stages of pipelines; of a few numbers of each, with
/// the optimizer, or weights too, divided where the request allows it.
std::vector<Plan> team_plans(const Rates& rates);

}  // namespace hetermoe
