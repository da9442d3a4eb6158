#pragma once
#include <optional>

#include "hetermoe/nn/learning_rate.h"

namespace hetermoe {

/// Learning rate of a run, and how long it is. Part of TrainOptions.
struct RateOptions {
  i64 steps = 100;
  std::optional<double> epochs;  ///< null in a job whose steps are known, see with_steps()
  double learning_rate = 1e-3, final_share = 0.1;
  std::optional<double> min_lr;
  RateSchedule schedule = RateSchedule::kCosine;
  i64 warmup_steps = 10;
  std::optional<i64> decay_steps;
  double decay_share = 0.1;
  RateDecay decay = RateDecay::kCosine;
  template <class V>
  void length_fields(V& v) {
    v("steps", steps, "optimizer steps", at_least(0));
    v("epochs", epochs,
      "in place of train.steps: so many times the windows of the training text are read, which the sequences "
      "of "
      "all steps together are, rounded up to whole steps; null = train.steps says how long",
      Range{0, 1e6, true});
  }
  template <class V>
  void rate_fields(V& v) {
    v("learning_rate", learning_rate,
      "peak learning rate. Where the job gives none, weights of train.init_from have 5e-5, and adapters "
      "beside "
      "them 1e-4; a run that goes on has that of its checkpoint",
      at_least(0));
    v("schedule", schedule,
      "learning rate after the warm-up: constant; linear or cosine: falls until the end; wsd: constant, and "
      "falls in "
      "the last steps (docs/finetune.md)");
    v("final_share", final_share, "learning rate at the end, as a share of the peak; unused with constant",
      between(0, 1));
    v("min_lr", min_lr, "the same as a rate, in place of train.final_share; null = final_share says it",
      at_least(0));
    v("warmup_steps", warmup_steps, "steps of linear warm-up", at_least(0));
    v("decay_steps", decay_steps, "wsd: steps in which the rate falls; null = train.decay_share of all",
      at_least(0));
    v("decay_share", decay_share,
      "wsd: the same as a share of train.steps, at most the steps after the warm-up", between(0, 1));
    v("decay", decay, "wsd: how the rate falls: cosine, linear, 1-sqrt");
  }
};

/// The schedule of a run whose steps are known. Throws ConfigError where min_lr or decay_steps do not fit.
LearningRate learning_rate_of(const RateOptions& options);

/// One of steps and epochs is given, a flag in place of what the file gives. Throws ConfigError for both in
/// one of them. file, flags: what they give, as a job.
void settle_length(const Json& file, const Json& flags, RateOptions& options);

}  // namespace hetermoe
