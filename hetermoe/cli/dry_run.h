#pragma once
#include "hetermoe/train/job/job.h"

namespace hetermoe {

/// What `hetermoe train` would do, without doing it: the plan's memory by device, the simulated time of the
/// whole run, and how often it reads its data. Everything that would be refused before the first step is
/// refused. Writes nothing but to stdout; returns the exit code.
int dry_run(const Job& job, bool json);

}  // namespace hetermoe
