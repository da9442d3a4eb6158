#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// What a plan is called and, per device type, how it is used. Fills every field of a candidate that follows
/// from its plan, prediction and memory, but the verdict.
void describe(const PlanRequest& request, Candidate& candidate);

/// Simulates once more and follows the critical path back from the end of the step: "46 % attention on A40,
/// ...".
std::string critical_path(const PlanRequest& request, Plan plan);

/// "V100 busy 94 %", or that no type is: then transfers and order limit the plan.
std::string busiest_type(const Candidate& candidate);

/// Verdicts of all candidates and the explanation, best first.
void explain(PlanResult& result);

}  // namespace hetermoe
