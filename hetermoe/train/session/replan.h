#pragma once
#include <string>
#include <utility>
#include <vector>

#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// Keys of a job and their new values, as flags give them.
using JobChanges = std::vector<std::pair<std::string, std::string>>;

/// The differences from `before` to `after`.
JobChanges changes_between(const Job& before, const Job& after);

struct Replanned {
  JobChanges changes;
  std::vector<DeviceId> devices;  ///< that the new plan uses, ascending; may be fewer than are left
  std::string how;                ///< whose plan it is and why, for the log
};

/// A new plan for a job of which only `survivors` (ascending) are left. Devices keep their numbers, the step
/// its sequences, roles their dtypes. The simulator compares two plans. One is the best that the planner
/// finds and the schedule allows; it is written to OUTPUT/replanned-N.json. The other is that of the job's
/// own strategy: devices keep their roles if both roles are still there, shares are equal, and a single
/// device does everything. Throws ConfigError when neither fits.
Replanned replan(const Job& job, const std::vector<DeviceId>& survivors);

}  // namespace hetermoe
