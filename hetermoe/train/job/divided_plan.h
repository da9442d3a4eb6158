#pragma once
#include "hetermoe/train/job/job.h"

// Plans of jobs whose copies are divided within a step, or whose sequences are.
namespace hetermoe {

/// The job, and not a plan file, says that copies are divided by the counts of each exchange.
bool divides_in_step(const Job& job);
/// The plan with tally (or without, where choices are foreseen), guests and speeds. A balancer that makes
/// copies has them from the first step on, for even loads. Throws ConfigError where there is no room for
/// these.
Plan divided_in_step(const Job& job, Plan plan, const ModelConfig& model, const Cluster& cluster);
/// Throws ConfigError when copies are divided without a tally and the choices are not known beforehand, and
/// when guests lack room or meet adapters.
void check_divided(const Job& job, const Plan& plan, const ModelConfig& model, const Cluster& cluster);

/// No device of a team has a whole sequence. Throws ConfigError for what looks at one.
void check_team_job(const Job& job, const Plan& plan);

}  // namespace hetermoe
