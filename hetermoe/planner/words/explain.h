#pragma once
#include <string>
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// Names a plan and says how it uses each device type. Fills every field of a candidate, but the verdict,
/// that follows from the plan, its prediction and, where there is one, its memory. The plan may have fewer
/// layers than the model.
void describe(const PlanRequest& request, const Plan& plan, Candidate& candidate);

/// "V100 busiest, 94 %": the mean of its devices; empty = no device is used.
std::string busiest_type(const Candidate& candidate);

/// The rate that a plan is expected to reach, by the devices that it uses.
Expected expected_of(const PlanRequest& request, const Plan& plan);

/// Verdicts of all candidates and the explanation, best first.
void explain(PlanResult& result);

}  // namespace hetermoe
