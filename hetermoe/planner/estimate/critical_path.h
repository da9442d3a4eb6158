#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// Values of Cause::what: rows between devices; weights, gradients and activations that hosts keep.
inline constexpr const char *kTransfers = "transfers", *kHostCopies = "copies to and from hosts";

/// Simulates a plan and follows the critical path back from the end of the step: what fills it, the largest
/// share first. In large steps, layers and windows of microbatches that repeat themselves are extrapolated;
/// `timeline` becomes that of what was simulated, see listed_timeline().
std::vector<Cause> critical_path(const PlanRequest& request, Plan plan, Timeline& timeline);

/// "critical path: 46 % attention on A40, ...": the largest three of more than 3 %.
std::string in_words(const std::vector<Cause>& path);

}  // namespace hetermoe
