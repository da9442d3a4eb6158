#include "hetermoe/train/run/health.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace hetermoe {
namespace {

const std::vector<std::string> kKinds = {"A40", "A40", "A40", "V100", "V100", "T4"};

TEST(OverPeers, ComparesWithTheMedianOfTheOthersOfTheSameKind) {
  const std::vector<double> ratios = over_peers({1, 1.2, 1, 8, 10, 5}, kKinds);
  EXPECT_DOUBLE_EQ(ratios[0], 1 / 1.2);  // peers 1 and 1.2: the upper one
  EXPECT_DOUBLE_EQ(ratios[1], 1.2);
  EXPECT_DOUBLE_EQ(ratios[3], 0.8);
  EXPECT_DOUBLE_EQ(ratios[4], 1.25);
  EXPECT_EQ(ratios[5], 0);  // alone of its kind
}

TEST(OverPeers, ADeviceThatDidNothingIsNoPeer) {
  const std::vector<double> ratios = over_peers({0, 1.2, 1, 0, 10, 5}, kKinds);
  EXPECT_EQ(ratios[0], 0);
  EXPECT_DOUBLE_EQ(ratios[1], 1.2);
  EXPECT_EQ(ratios[4], 0);
}

// Claim (StragglerWatch.*, Watch.*): a slow device is named under the virtual clock, uneven loads are not
TEST(StragglerWatch, NamesADeviceOnceAfterSoManyStepsInARow) {
  StragglerWatch watch(kKinds, 0.1);
  for (i64 step = 1; step < 3 * StragglerWatch::kSteps; ++step) {
    const std::vector<Straggler> found = watch.add({1, 1, 1, 1, 1.25, 9});
    ASSERT_EQ(found.size(), step == StragglerWatch::kSteps ? 1U : 0U) << step;
    if (found.empty()) continue;
    EXPECT_EQ(found[0].device, 4);
    EXPECT_DOUBLE_EQ(found[0].over_peers, 1.25);
  }
}

TEST(StragglerWatch, OneGoodStepStartsTheCountAnew) {
  StragglerWatch watch(kKinds, 0.1);
  for (i64 step = 0; step < 5 * StragglerWatch::kSteps; ++step) {
    const double slow = step % StragglerWatch::kSteps == 0 ? 1.0 : 1.5;
    EXPECT_TRUE(watch.add({1, 1, slow, 1, 1, 1}).empty());
  }
}

TEST(StragglerWatch, UpToTheShareNobodyIsNamedAndZeroIsOff) {
  StragglerWatch watch(kKinds, 0.1), off(kKinds, 0);
  for (i64 step = 0; step < 3 * StragglerWatch::kSteps; ++step) {
    EXPECT_TRUE(watch.add({1, 1, 1.09, 1, 1, 1}).empty());
    EXPECT_TRUE(off.add({1, 1, 9, 1, 1, 1}).empty());
  }
}

/// Falls slowly, with small waves.
double usual_loss(i64 step) {
  const double s = static_cast<double>(step);
  return 5 - 0.01 * s + 0.05 * std::sin(1.7 * s);
}

TEST(SpikeWatch, TellsAJumpOnceWithItsSize) {
  SpikeWatch watch(6);
  for (i64 step = 0; step < 200; ++step) {
    const bool jump = step >= 100 && step < 103;
    const std::optional<Spike> spike = watch.add(usual_loss(step) + (jump ? 3 : 0));
    EXPECT_EQ(spike.has_value(), step == 100) << step;
    if (!spike) continue;
    EXPECT_NEAR(spike->loss, 7, 0.1);
    EXPECT_NEAR(spike->median, 4.3, 0.1);
    EXPECT_GT(spike->sigmas, 6);
  }
}

TEST(SpikeWatch, ASecondJumpIsToldAgain) {
  SpikeWatch watch(6);
  int spikes = 0;
  for (i64 step = 0; step < 200; ++step)
    spikes += watch.add(usual_loss(step) + (step == 100 || step == 110 ? 3 : 0)).has_value();
  EXPECT_EQ(spikes, 2);
}

TEST(SpikeWatch, AQuietRunEqualLossesAndTheFirstStepsAreNoSpikes) {
  SpikeWatch quiet(6), equal(6), first(6), off(0);
  for (i64 step = 0; step < 300; ++step) {
    EXPECT_FALSE(quiet.add(usual_loss(step)));
    EXPECT_FALSE(equal.add(1 + 1e-9 * static_cast<double>(step % 2)));
    EXPECT_FALSE(off.add(step == 200 ? 99 : 1));
  }
  EXPECT_FALSE(first.add(1));
  EXPECT_FALSE(first.add(100));
}

TEST(SpikeWatch, LossesThatAreNotFiniteAreNotLookedAt) {
  SpikeWatch watch(6);
  for (i64 step = 0; step < 50; ++step) {
    EXPECT_FALSE(watch.add(usual_loss(step)));
    EXPECT_FALSE(watch.add(std::numeric_limits<double>::quiet_NaN()));
    EXPECT_FALSE(watch.add(std::numeric_limits<double>::infinity()));
  }
}

TEST(MemoryWatch, GrowthIsToldOnceAndNotInTheFirstSteps) {
  MemoryWatch watch;
  for (i64 step = 1; step <= MemoryWatch::kSettled; ++step)
    EXPECT_FALSE(watch.add(100.0 * static_cast<double>(step)));
  const Bytes settled = 100.0 * MemoryWatch::kSettled;
  EXPECT_FALSE(watch.add(1.25 * settled));
  EXPECT_EQ(watch.add(1.26 * settled), settled);
  EXPECT_FALSE(watch.add(2 * settled));
}

TEST(MemoryWatch, TheWatermarkIsOfThisProcess) {
  const Bytes before = resident_watermark();
  EXPECT_GT(before, 1 << 20);
  const std::vector<char> block(64 << 20, 1);
  EXPECT_GE(resident_watermark(), std::max(before, static_cast<Bytes>(block.size())));
}

}  // namespace
}  // namespace hetermoe
