#include "hetermoe/train/job/rate_options.h"

#include <cmath>

namespace hetermoe {

LearningRate learning_rate_of(const RateOptions& options) {
  LearningRate out;
  out.peak = options.learning_rate;
  out.lowest = options.min_lr.value_or(options.final_share * options.learning_rate);
  out.schedule = options.schedule;
  out.warmup_steps = options.warmup_steps;
  out.total_steps = options.steps;
  out.decay = options.decay;
  if (options.min_lr && *options.min_lr > options.learning_rate) {
    fail<ConfigError>("train.min_lr", "got {}, expected at most the peak, {} (train.learning_rate)",
                      *options.min_lr, options.learning_rate);
  }
  if (options.min_lr && options.schedule == RateSchedule::kConstant)
    fail<ConfigError>("train.min_lr", "got {} with train.schedule constant, which never falls: leave it out",
                      *options.min_lr);
  if (options.decay_steps && options.schedule != RateSchedule::kWsd)
    fail<ConfigError>("train.decay_steps", "got {} with train.schedule {}, expected wsd or none",
                      *options.decay_steps, name_of(options.schedule));
  const i64 most = std::max<i64>(0, options.steps - options.warmup_steps);
  if (options.decay_steps && *options.decay_steps > most) {
    fail<ConfigError>("train.decay_steps",
                      "got {}, expected at most {}, the steps after the warm-up (train.steps {}, "
                      "train.warmup_steps {})",
                      *options.decay_steps, most, options.steps, options.warmup_steps);
  }
  const double share = std::round(options.decay_share * static_cast<double>(options.steps));
  out.decay_steps = options.decay_steps.value_or(std::min(most, static_cast<i64>(share)));
  return out;
}

namespace {

bool gives(const Json& job, const char* key) {
  const Json::json_pointer pointer(std::string("/train/") + key);
  return job.contains(pointer) && !job[pointer].is_null();
}

}  // namespace

void settle_length(const Json& file, const Json& flags, RateOptions& options) {
  const Json& told = gives(flags, "steps") || gives(flags, "epochs") ? flags : file;
  if (gives(told, "steps") && gives(told, "epochs")) {
    fail<ConfigError>("train.epochs",
                      "got {} beside train.steps {}, expected one of them: leave the other out",
                      *options.epochs, options.steps);
  }
  if (gives(told, "steps")) options.epochs.reset();
}

}  // namespace hetermoe
