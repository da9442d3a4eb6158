#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

/// How the learning rate goes after the warm-up. constant: it stays. linear, cosine: it falls to the lowest
/// rate at the end of the run. wsd (warm-up, stable, decay): it stays, and falls in the last steps.
enum class RateSchedule { kConstant, kLinear, kCosine, kWsd };
template <>
struct EnumNames<RateSchedule> {
  static const std::vector<std::string>& names();
};

/// The fall of wsd, by the share p of it that has passed: (1 + cos(pi p)) / 2, 1 - p, 1 - sqrt(p).
enum class RateDecay { kCosine, kLinear, kOneMinusSqrt };
template <>
struct EnumNames<RateDecay> {
  static const std::vector<std::string>& names();
};

struct LearningRate {
  double peak = 3e-4, lowest = 3e-5;
  RateSchedule schedule = RateSchedule::kCosine;
  i64 warmup_steps = 0;  ///< linear from peak/warmup_steps
  i64 total_steps = 0;   ///< with warmup_steps or fewer the peak stays after the warm-up
  i64 decay_steps = 0;   ///< wsd: the last of total_steps, at most those after the warm-up
  RateDecay decay = RateDecay::kCosine;
};
/// Rate of step `step` (the first is 0). From the end of the warm-up on it is that of transformers' schedules
/// of these names, whose warm-up begins at 0 and so is one step behind. After total_steps the rate of the
/// last step but one stays: the lowest, the peak where it never falls.
double learning_rate_at(const LearningRate& rate, i64 step);

}  // namespace hetermoe
