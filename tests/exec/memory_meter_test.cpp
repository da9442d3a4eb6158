#include "hetermoe/exec/memory_meter.h"

#include <gtest/gtest.h>

#include <thread>

namespace hetermoe::testing {
namespace {

constexpr Bytes kKibOfMeter = 1024;

at::Tensor make_kib(i64 count) { return at::zeros({count * 1024}, at::kByte); }

TEST(MemoryMeter, CountsWhatAnOpMakesAndLeaves) {
  MemoryMeter meter;
  const at::Tensor before = make_kib(9);
  at::Tensor kept;
  {
    MemoryMeter::Watch watch(meter, 3);
    watch.begin(7);
    kept = make_kib(2);
    { const at::Tensor gone = make_kib(5); }
    watch.begin(8);
    kept.reset();
    kept = make_kib(1);
  }
  const at::Tensor after = make_kib(9);
  EXPECT_EQ(meter.of(7, 3).peak, 7 * kKibOfMeter);
  EXPECT_EQ(meter.of(7, 3).left, 2 * kKibOfMeter);
  EXPECT_EQ(meter.of(8, 3).peak, 0);
  EXPECT_EQ(meter.of(8, 3).left, -1 * kKibOfMeter);
  EXPECT_EQ(meter.of(8, 2).left, 0);
}

TEST(MemoryMeter, ABlockThatAnotherDeviceFreesIsGivenBackToItsOwner) {
  MemoryMeter meter;
  at::Tensor sent;
  {
    MemoryMeter::Watch watch(meter, 0);
    watch.begin(1);
    sent = make_kib(4);
  }
  std::thread([&] {
    MemoryMeter::Watch watch(meter, 1);
    watch.begin(2);
    sent.reset();
  }).join();
  EXPECT_EQ(meter.of(2, 0).left, -4 * kKibOfMeter);
  EXPECT_EQ(meter.of(2, 1).left, 0);
}

/// How far another device is with an op is chance: what it frees of a device's blocks lowers no peak.
TEST(MemoryMeter, WhatAnotherDeviceFreesCountsWhenTheOpEnds) {
  MemoryMeter meter;
  MemoryMeter::Watch watch(meter, 0);
  watch.begin(1);
  at::Tensor sent = make_kib(4);
  std::thread([&] {
    MemoryMeter::Watch receiver(meter, 1);
    receiver.begin(1);
    sent.reset();
  }).join();
  const at::Tensor kept = make_kib(2);
  EXPECT_EQ(meter.of(1, 0).peak, 6 * kKibOfMeter);
  EXPECT_EQ(meter.of(1, 0).left, 2 * kKibOfMeter);
}

TEST(MemoryMeter, PeaksAddUpWhatRunsAtTheSameTime) {
  MemoryMeter meter;
  at::Tensor kept;
  {
    MemoryMeter::Watch watch(meter, 0);
    watch.begin(0);
    kept = make_kib(2);
    { const at::Tensor gone = make_kib(5); }
    watch.begin(1);
    { const at::Tensor gone = make_kib(3); }
  }
  Timeline timeline;
  timeline.spans = {{0, 0, 0, 2}, {1, 0, 2, 3}};
  EXPECT_EQ(meter.peaks(timeline, 1)[0], 7 * kKibOfMeter);
  timeline.spans = {{0, 0, 0, 2}, {1, 0, 1, 3}};
  EXPECT_EQ(meter.peaks(timeline, 1)[0], 10 * kKibOfMeter);
}

}  // namespace
}  // namespace hetermoe::testing
