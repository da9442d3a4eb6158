#pragma once
#include <vector>

#include "hetermoe/planner/estimate/rates.h"

namespace hetermoe {

/// Plans in which teams share sequences: in groups, and in stages of pipelines; of a few numbers of each, with
/// the optimizer, or weights too, divided where the request allows it. For requests with fewer sequences than
/// devices, or with sequences that no device holds.
std::vector<Plan> team_plans(const Rates& rates);

}  // namespace hetermoe
