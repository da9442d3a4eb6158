#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// What gives room to a request that no plan fits, in words, each by itself: main memory, smaller states,
/// adapters, shorter sequences, more devices and limits that are lifted are tried, by short searches. Not in
/// large clusters, where these take too long.
std::vector<std::string> ways_out(const PlanRequest& request);

/// The same as a sentence; empty = nothing was tried.
std::string ways_out_text(const PlanRequest& request);

}  // namespace hetermoe
