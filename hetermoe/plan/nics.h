#pragma once
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// PlanChoices::nics as a job has them, where one number stands for all devices. Throws ConfigError.
std::vector<i64> nics_of_devices(const std::vector<i64>& asked, const Cluster& cluster);

/// What validate() finds in PlanChoices::nics. A plan on several nodes needs the network on each of its
/// devices, and on the hosts that it uses. The plan's groups are whole.
std::vector<std::string> nic_faults(const Plan& plan, const Cluster& cluster);

}  // namespace hetermoe
