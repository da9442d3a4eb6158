#pragma once
#include <string>
#include <vector>

#include "hetermoe/train/job/job.h"

// Values that a job does not have and that follow from other values of it; notes of a run on its job.
namespace hetermoe {

/// Fills them in and sets `job.usual`. file, flags: what is written, as a job.
void settle_usual(const Json& file, const Json& flags, Job& job);

/// "taken by default: model demo (--model names another), cluster demo (...)"; empty = the job names both.
std::string taken_by_default(const Job& job);

/// Notes of a run on these values, and on a warm-up that is longer than the run: a sentence each.
std::vector<std::string> usual_notes(const Job& job, const ModelConfig& model);

/// Of keys that differ from their defaults and change nothing, because what they are for is off:
/// "routing.every 2 has no effect without routing.record".
std::vector<std::string> idle_keys_notes(const Job& job);

/// Begins the error of a plan with faults: "the plan does not fit model X on cluster Y", or that it was made
/// for another model or other devices.
std::string misfit_text(const Plan& plan, const ModelConfig& model, const Cluster& cluster);

/// What rows that go once to each node (Plan::row_nodes) do for the plan; empty = it has none.
std::string row_nodes_note(const Plan& plan, const Cluster& cluster);

/// Which devices have attention and experts under a strategy that keeps these apart, because plan.attention
/// and plan.experts say so; empty = none.
std::string both_roles_note(const Job& job, const Cluster& cluster);

/// That a plan was made for other types of devices than the cluster has, in words; empty = it was not, or
/// does not say.
std::string other_devices_note(const Plan& plan, const Cluster& cluster);

}  // namespace hetermoe
