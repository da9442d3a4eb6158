#pragma once
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// Prints what `hetermoe train` would do: the plan's memory by device, the simulated time of the whole run,
/// and how often it reads its data. It refuses everything that `train` would refuse before the first step.
/// Writes nothing but to stdout; returns the exit code.
int dry_run(const Job& job, bool json);

}  // namespace hetermoe
