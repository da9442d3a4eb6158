#include "hetermoe/nn/learning_rate.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hetermoe/base/enum_count.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<RateSchedule>::names() {
  static const std::vector<std::string> all =
      names_of_all<RateSchedule>({"constant", "linear", "cosine", "wsd"});
  return all;
}

const std::vector<std::string>& EnumNames<RateDecay>::names() {
  static const std::vector<std::string> all = names_of_all<RateDecay>({"cosine", "linear", "1-sqrt"});
  return all;
}

namespace {

/// Part of the way from the lowest rate to the peak that is left when `passed` of the fall has passed.
double left_of_fall(RateDecay decay, double passed) {
  if (decay == RateDecay::kLinear) return 1 - passed;
  if (decay == RateDecay::kOneMinusSqrt) return 1 - std::sqrt(passed);
  return (1 + std::cos(std::numbers::pi * passed)) / 2;
}

RateDecay fall_of(const LearningRate& rate) {
  if (rate.schedule == RateSchedule::kWsd) return rate.decay;
  return rate.schedule == RateSchedule::kLinear ? RateDecay::kLinear : RateDecay::kCosine;
}

}  // namespace

double learning_rate_at(const LearningRate& rate, i64 step) {
  if (step < rate.warmup_steps)
    return rate.peak * static_cast<double>(step + 1) / static_cast<double>(rate.warmup_steps);
  const i64 after_warmup = rate.total_steps - rate.warmup_steps;
  const i64 falling =
      rate.schedule == RateSchedule::kWsd ? std::min(rate.decay_steps, after_warmup) : after_warmup;
  const i64 fallen = step - (rate.total_steps - falling);
  if (rate.schedule == RateSchedule::kConstant || falling <= 0 || fallen <= 0) return rate.peak;
  const double passed = std::min(1.0, static_cast<double>(fallen) / static_cast<double>(falling));
  return rate.lowest + (rate.peak - rate.lowest) * left_of_fall(fall_of(rate), passed);
}

}  // namespace hetermoe
