#pragma once
#include "hetermoe/train/job.h"

// Plans of jobs whose copies are divided within a step.
namespace hetermoe {

/// The job, and not a plan file, says that copies are divided by the counts of each exchange.
bool divides_in_step(const Job& job);
/// The plan with tally, guests and speeds. A balancer that makes copies has them from the first step on, for
/// even loads. Throws ConfigError where there is no room for these.
Plan divided_in_step(const Job& job, Plan plan, const ModelConfig& model, const Cluster& cluster);
/// Guests need room, and somebody who knows the counts by which they are chosen. Throws ConfigError.
void check_guests(const Job& job, const Plan& plan, const ModelConfig& model, const Cluster& cluster);

}  // namespace hetermoe
