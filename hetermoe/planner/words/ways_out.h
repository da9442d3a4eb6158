#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// Changes that give room to a request that no plan fits, in words. Short searches try each by itself: main
/// memory, smaller states, adapters, shorter sequences, more devices, and lifted limits. If none of these
/// alone is enough, they try smaller states and adapters with more memory or devices. Empty for large
/// clusters, where the searches take too long.
std::optional<std::vector<std::string>> ways_out(const PlanRequest& request);

}  // namespace hetermoe
