#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/data/dataset.h"
#include "hetermoe/train/run/results.h"

namespace hetermoe {

/// How a job is run.
struct JobRunOptions {
  bool execute = true;  ///< false: predictions only
  i64 timed_steps = 0;  ///< steps under the paced clock, after training under the job's
  Checkpoints checkpoints = Checkpoints::kOff;
  RunHooks hooks{};  ///< on_note and on_begin of every run
  /// "pp-ep does not run: ..." of each of several strategies that is left out
  std::function<void(const std::string&)> on_left_out = {};
  std::optional<ModelConfig> model = {};  ///< in place of job.model
  i64 end_after = 0;      ///< steps after which each run ends, of a job that has more; 0 = all
  std::string mark = {};  ///< what changed before the first step of each run; empty = nothing
  std::shared_ptr<const Dataset> data = {};  ///< of the job, where it was read before
};

/// Hears of every step, with the printed name of its strategy.
using OnStep = std::function<void(const std::string&, const StepRecord&)>;

/// The runs of `hetermoe train`, and the model at its end.
struct TrainedJob {
  std::vector<StrategyRun> runs;
  ModelConfig model;
  std::string cluster;
};

/// Trains the job by its strategy, under one model. Metrics are written to job.output as steps end.
/// Collective.
TrainedJob train_job(const Job& job, const JobRunOptions& options, const OnStep& on_step,
                     const Processes& processes);

/// Trains (or only predicts) the job once per strategy (job_of_strategy), with the same model, cluster, data
/// and seed. Ends early after Ctrl-C. Collective.
std::vector<StrategyRun> run_job(const Job& job, const std::vector<std::string>& strategies,
                                 const JobRunOptions& options, const OnStep& on_step,
                                 const Processes& processes);

}  // namespace hetermoe
