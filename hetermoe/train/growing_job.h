#pragma once
#include "hetermoe/train/compare.h"

// A job whose model grows in mid-run (grow): a run with the model of the job up to that step, its last
// checkpoint grown in its place, and a run with the grown model from there.
namespace hetermoe {

/// What `hetermoe train` ran, and the model that it ended with.
struct TrainedJob {
  std::vector<StrategyRun> runs;
  ModelConfig model;
  std::string cluster;
};

/// Trains the job by its strategy; collective. A run that was cut goes on before or after its growth, as its
/// newest checkpoint says. Throws ConfigError before the first step when the model cannot grow so.
TrainedJob train_job(const Job& job, const CompareRunOptions& options,
                     const std::function<void(const std::string&, const StepRecord&)>& on_step,
                     const Processes& processes);

}  // namespace hetermoe
