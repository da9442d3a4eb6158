#include <algorithm>

#include "hetermoe/train/trainer.h"

// A run and the text that it validates on.
namespace hetermoe {

bool Trainer::validates_after(i64 step) const {
  const TrainOptions& train = job_.train;
  const bool due = train.validate_every > 0 && (step + 1) % train.validate_every == 0;
  return validation_ && (due || step + 1 == train.steps) && step < train.steps;
}

double Trainer::validate() {
  const TrainOptions& train = job_.train;
  double sum = 0, targets = 0;
  const i64 batches = std::max<i64>(1, train.validation_sequences / train.sequences);
  for (i64 b = 0; b < batches; ++b) {
    const StepInput input = input_of(*validation_, b, b * train.sequences);
    sum += session_->evaluate(input).loss;
    targets += real(input.target_count);
  }
  double all = 0;
  for (const std::string& text : processes_.gather(fmt::format("{}", sum))) all += std::stod(text);
  return all / targets;
}

}  // namespace hetermoe
