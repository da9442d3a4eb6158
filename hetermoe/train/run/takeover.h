#pragma once
#include <string>

#include "hetermoe/train/run/run_state.h"

// A run goes over from one plan to the next.
namespace hetermoe {

/// Moves the units that the devices of the plan lack to them, then informs all parts of the plan. Does
/// nothing if the plan is in force already. Collective.
PlanTakeover go_over_to(RunState& run, const Plan& plan);

/// The plan takes over before step `step` (0 = the first), and is reported under `name`. Collective.
void take_over(RunState& run, const Plan& plan, i64 step, const std::string& name);

/// The plan under which a run goes on from a checkpoint: that which was in force, if it is still one of the
/// job, else the one that the job has at this step.
Plan plan_after(const RunState& run, const CheckpointInfo& info);

/// Rank 0 says which plan comes next; collective.
Plan plan_of_rank_0(const Processes& processes, const Plan& mine);

}  // namespace hetermoe
