#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/train/results.h"

namespace hetermoe {

struct CompareRunOptions {
  std::vector<std::string> strategies;
  bool execute = true;  ///< false: predictions only
  i64 timed_steps = 0;  ///< steps under the paced clock, after training under the job's
  Checkpoints checkpoints = Checkpoints::kOff;
  RunHooks hooks{};                       ///< on_note and on_begin of every run
  std::optional<ModelConfig> model = {};  ///< in place of job.model
  i64 end_after = 0;      ///< steps after which each run ends, of a job that has more; 0 = all
  std::string mark = {};  ///< what changed before the first step of each run; empty = nothing
  std::shared_ptr<const Dataset> data = {};  ///< of the job, where it was read before
};

/// Trains (or only predicts) the job once per strategy (job_of_strategy): same model, cluster, data, seed.
/// Ends early after Ctrl-C. Metrics are written to job.output as steps end. `on_step` hears of every step.
std::vector<StrategyRun> compare_job(
    const Job& job, const CompareRunOptions& options,
    const std::function<void(const std::string&, const StepRecord&)>& on_step = {},
    const Processes& processes = Processes());

}  // namespace hetermoe
