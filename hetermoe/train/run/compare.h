#pragma once
#include <string>
#include <vector>

#include "hetermoe/train/run/train_job.h"

namespace hetermoe {

/// Runs the job once per strategy, as run_job() does. Throws ConfigError for a job that only one strategy can
/// run: with train.changes, routing.record or grow.
std::vector<StrategyRun> compare_job(const Job& job, const std::vector<std::string>& strategies,
                                     const JobRunOptions& options = {}, const OnStep& on_step = {},
                                     const Processes& processes = Processes());

}  // namespace hetermoe
