#pragma once
#include <memory>

#include "hetermoe/data/dataset.h"
#include "hetermoe/train/job/job.h"

// How long a run is, in steps and in epochs. An epoch are as many sequences as the sources have windows of
// train.seq_len tokens: each is read once where data.weights is not given.
namespace hetermoe {

/// The job with train.steps in place of train.epochs, and the data that were read to know them: null where
/// the job says steps. Throws what load_job_data() does.
struct JobOfSteps {
  Job job;
  std::shared_ptr<const Dataset> data;
};
JobOfSteps with_steps(Job job);

/// Epochs that the steps of a job are.
double epochs_of(const TrainOptions& train, const Dataset& data);

/// "in 500 steps (2 epochs)"
std::string length_text(const TrainOptions& train, const Dataset& data);

}  // namespace hetermoe
