#pragma once
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/train/job.h"

namespace hetermoe {

/// Keys of a job and their new values, as flags give them.
using JobChanges = std::vector<std::pair<std::string, std::string>>;

/// A new plan for a job of which only `survivors` (ascending) are left, by the job's own strategy: devices
/// keep their numbers and, where both roles are still there, their roles; else roles are given anew. Shares
/// become equal. One device left: strategy single. Throws ConfigError when nothing fits.
JobChanges replan(const Job& job, const std::vector<DeviceId>& survivors);

}  // namespace hetermoe
