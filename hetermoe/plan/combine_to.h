#pragma once
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Faults that validate() finds in a plan with CombineTo::kNext: the settings that it excludes, by name. None
/// in other plans. The plan's shares are whole.
std::vector<std::string> combine_faults(const Plan& plan);

}  // namespace hetermoe
