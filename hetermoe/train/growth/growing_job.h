#pragma once
#include "hetermoe/model/growth.h"
#include "hetermoe/train/run/train_job.h"

// A job whose model grows in mid-run (grow): a run with the model of the job up to that step, its last
// checkpoint grown in its place, and a run with the grown model from there. Where top-k then falls
// (grow.narrow_to), each fall is a change of the same kind, of the config alone.
namespace hetermoe {

/// The steps of a job that have one model.
struct JobPart {
  Job job;  ///< by which they are trained
  ModelConfig model;
  Growth from = {};  ///< the part before; of the first: nothing
  i64 end = 0;       ///< steps of the job when it ends
};
/// In their order; one where the model does not grow. Throws ConfigError when it cannot grow so, and where
/// devices that had room before have none after it.
std::vector<JobPart> parts_of(const Job& job);

/// The model of the job changes in mid-run.
bool grows(const Job& job);

/// Trains a job that grows by its strategy; collective. A run that was cut goes on before or after its
/// growth, as its newest checkpoint says. Throws ConfigError before the first step when the model cannot grow
/// so.
TrainedJob train_growing_job(const Job& job, const JobRunOptions& options, const OnStep& on_step,
                             const Processes& processes);

}  // namespace hetermoe
