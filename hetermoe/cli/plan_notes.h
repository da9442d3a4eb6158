#pragma once
#include <string>

#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/strategies/allocation.h"

// Sentences of `plan` and `compare` beside their tables.
namespace hetermoe {

/// T_a and T_f of a plan with depth groups: "T_a 1.2 ms by compute (6 devices with attention), ...".
std::string roles_text(const Allocation& roles);
inline constexpr const char* kRolesMeaning =
    "T_a, T_f: what devices with attention and with experts take for a layer and a microbatch, forward and "
    "backward, if none ever waits";

/// How many times as long as their rows travel the experts compute, by each kind of link; empty = there is no
/// link, or there are no experts.
std::string hiding_text(const PlanRequest& request);
Json hiding_json(const PlanRequest& request);

/// Prints roles_text() of each plan with depth groups that was tried, a line each.
void print_depth_roles(const PlanRequest& request, const PlanResult& result);
Json depth_roles_json(const PlanRequest& request, const PlanResult& result);

}  // namespace hetermoe
