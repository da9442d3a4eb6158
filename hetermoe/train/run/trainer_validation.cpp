#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/train/run/trainer.h"

// A run and the text that it validates on.
namespace hetermoe {

void Trainer::prepare_validation(const Dataset& data) {
  if (job_.train.validation_sequences == 0) return;
  for (i64 s = 0; s < static_cast<i64>(data.sources.size()); ++s) {
    const Source& source = data.sources[idx(s)];
    if (source.validation.size() == 0) continue;
    const SamplerOptions how = {job_.train.seq_len, job_.train.seed, /*validation=*/true, s};
    validation_.push_back({source.name, domain_of_source_[idx(s)], source.share, Sampler(data, how)});
    unigram_entropy_ += source.share * unigram_entropy(source.validation);
  }
}

bool Trainer::validates_after(i64 step) const {
  const TrainOptions& train = job_.train;
  const bool due = train.validate_every > 0 && (step + 1) % train.validate_every == 0;
  return !validation_.empty() && (due || step + 1 == train.steps) && step < train.steps;
}

Validation Trainer::validate(i64 step) {
  Validation out;
  out.step = step;
  for (const ValidationSource& source : validation_) {
    const double loss = validation_loss(source.sampler);
    out.loss += source.share * loss;
    if (validation_.size() > 1) out.sources.push_back({source.name, loss});
  }
  return out;
}

double Trainer::validation_loss(const Sampler& sampler) {
  const TrainOptions& train = job_.train;
  double sum = 0, targets = 0;
  const i64 batches = std::max<i64>(1, train.validation_sequences / train.sequences);
  for (i64 b = 0; b < batches; ++b) {
    const StepInput input = input_of(sampler, b, b * train.sequences);
    sum += session_->evaluate(input).loss;
    targets += real(input.target_count);
  }
  double all = 0;
  for (const std::string& text : processes_.gather(fmt::format("{}", sum))) all += std::stod(text);
  return all / targets;
}

}  // namespace hetermoe
