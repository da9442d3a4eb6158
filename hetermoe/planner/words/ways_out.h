#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// What gives room to a request that no plan fits, in words, each by itself: main memory, smaller states,
/// adapters, shorter sequences, more devices and limits that are lifted are tried, by short searches. Where
/// none of these alone is enough, smaller states and adapters with more memory or devices. Nothing of large
/// clusters, where these take too long.
std::optional<std::vector<std::string>> ways_out(const PlanRequest& request);

}  // namespace hetermoe
