#pragma once
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// What validate() finds in a plan with CombineTo::kNext: what does not go with it, by name. None in other
/// plans. The plan's shares are whole.
std::vector<std::string> combine_faults(const Plan& plan);

}  // namespace hetermoe
