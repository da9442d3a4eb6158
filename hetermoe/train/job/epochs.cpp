#include "hetermoe/train/job/epochs.h"

#include <cmath>

#include "hetermoe/base/words.h"
#include "hetermoe/data/sampler.h"
#include "hetermoe/train/job/job_data.h"

namespace hetermoe {
namespace {

double windows_of(const TrainOptions& train, const Dataset& data) {
  return real(Sampler(data, {train.seq_len, train.seed}).num_windows());
}

}  // namespace

JobOfSteps with_steps(Job job) {
  if (!job.train.epochs) return {std::move(job), nullptr};
  auto data = std::make_shared<const Dataset>(load_job_data(job));
  const double sequences = *job.train.epochs * windows_of(job.train, *data);
  job.train.steps = static_cast<i64>(std::ceil(sequences / real(job.train.sequences)));
  job.train.epochs.reset();
  return {std::move(job), std::move(data)};
}

double epochs_of(const TrainOptions& train, const Dataset& data) {
  return real(train.steps) * real(train.sequences) / windows_of(train, data);
}

std::string length_text(const TrainOptions& train, const Dataset& data) {
  return fmt::format("in {} ({:.3g} epochs)", counted(train.steps, "step"), epochs_of(train, data));
}

}  // namespace hetermoe
