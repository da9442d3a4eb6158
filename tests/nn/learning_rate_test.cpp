#include "hetermoe/nn/learning_rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace hetermoe {
namespace {

/// Closed formulas, written from the papers and not from the code: of step s of T with W of warm-up.
double closed_formula(const LearningRate& r, i64 step) {
  const double s = static_cast<double>(step), w = static_cast<double>(r.warmup_steps);
  const double t = static_cast<double>(r.total_steps), d = static_cast<double>(r.decay_steps);
  if (s < w) return r.peak * (s + 1) / w;
  const auto between = [&](double share) { return share * r.peak + (1 - share) * r.lowest; };
  switch (r.schedule) {
    case RateSchedule::kConstant:
      return r.peak;
    case RateSchedule::kLinear:
      return between((t - s) / (t - w));
    case RateSchedule::kCosine:
      return between(std::pow(std::cos(M_PI / 2 * (s - w) / (t - w)), 2));
    case RateSchedule::kWsd:
      break;
  }
  if (s < t - d) return r.peak;
  const double p = 1 - (t - s) / d;
  if (r.decay == RateDecay::kLinear) return between(1 - p);
  if (r.decay == RateDecay::kCosine) return between(std::pow(std::cos(M_PI / 2 * p), 2));
  return between(1 - std::sqrt(p));
}

// Claim (LearningRates.*, Epochs.*, RateOptions.*): learning rates are those of closed formulas, and of
// transformers after the warm-up; an epoch reads each window once; a cut changes neither
TEST(LearningRates, AreTheClosedFormulasInRandomRuns) {
  std::mt19937_64 random(7);
  const auto below = [&](i64 n) { return static_cast<i64>(random() % static_cast<u64>(n)); };
  for (int i = 0; i < 500; ++i) {
    LearningRate r;
    r.peak = 1e-5 * static_cast<double>(1 + below(1000));
    r.lowest = r.peak * static_cast<double>(below(11)) / 10;
    r.schedule = static_cast<RateSchedule>(below(4));
    r.decay = static_cast<RateDecay>(below(3));
    r.total_steps = 2 + below(300);
    r.warmup_steps = below(r.total_steps);
    r.decay_steps = 1 + below(r.total_steps - r.warmup_steps);
    double before = 0;
    for (i64 s = 0; s < r.total_steps; ++s) {
      const double rate = learning_rate_at(r, s);
      ASSERT_NEAR(rate, closed_formula(r, s), 1e-12 * r.peak)
          << name_of(r.schedule) << " step " << s << " of " << r.total_steps;
      if (s > r.warmup_steps) {
        ASSERT_LE(rate, before + 1e-12 * r.peak);
      }
      before = rate;
    }
    const double end = r.schedule == RateSchedule::kConstant ? r.peak : r.lowest;
    for (const i64 after : {r.total_steps, r.total_steps + 1000})
      EXPECT_NEAR(learning_rate_at(r, after), end, 1e-12 * r.peak) << name_of(r.schedule);
  }
}

/// As transformers 5.24 gives them (get_*_schedule*, LambdaLR at a peak of 1, 3 steps of warm-up, 10 in all;
/// wsd falls in 4 steps): the rate of its step s is ours from the end of the warm-up on.
TEST(LearningRates, AreThoseOfTransformers) {
  LearningRate r;
  r.peak = 1, r.lowest = 0, r.warmup_steps = 3, r.total_steps = 10, r.decay_steps = 4;
  const auto expect = [&](RateSchedule schedule, RateDecay decay, const std::vector<double>& expected) {
    r.schedule = schedule, r.decay = decay;
    for (std::size_t i = 0; i < expected.size(); ++i)
      EXPECT_NEAR(learning_rate_at(r, 3 + static_cast<i64>(i)), expected[i], 1e-12) << name_of(schedule) << i;
  };
  expect(RateSchedule::kConstant, RateDecay::kCosine, {1, 1, 1, 1, 1, 1, 1});
  expect(RateSchedule::kLinear, RateDecay::kCosine,
         {1, 0.857142857142857, 0.714285714285714, 0.571428571428571, 0.428571428571429, 0.285714285714286,
          0.142857142857143});
  expect(RateSchedule::kCosine, RateDecay::kCosine,
         {1, 0.95048443395121, 0.811744900929367, 0.611260466978157, 0.388739533021843, 0.188255099070633,
          0.0495155660487905});
  expect(RateSchedule::kWsd, RateDecay::kCosine, {1, 1, 1, 1, 0.853553390593274, 0.5, 0.146446609406726});
  expect(RateSchedule::kWsd, RateDecay::kLinear, {1, 1, 1, 1, 0.75, 0.5, 0.25});
  expect(RateSchedule::kWsd, RateDecay::kOneMinusSqrt,
         {1, 1, 1, 1, 0.5, 0.292893218813452, 0.133974596215561});
}

TEST(LearningRates, ARunThatIsAllWarmUpHasItsPeakAfterIt) {
  LearningRate r;
  r.peak = 2, r.warmup_steps = 4;
  for (const RateSchedule schedule :
       {RateSchedule::kConstant, RateSchedule::kLinear, RateSchedule::kCosine, RateSchedule::kWsd}) {
    r.schedule = schedule;
    EXPECT_EQ(learning_rate_at(r, 0), 0.5);
    EXPECT_EQ(learning_rate_at(r, 4), 2);
    EXPECT_EQ(learning_rate_at(r, 1000), 2);
  }
}

}  // namespace
}  // namespace hetermoe
