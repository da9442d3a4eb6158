#include "hetermoe/device/gpu_support.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

const std::vector<int> kCuda13 = {75, 80, 86, 90, 100, 120}, kCuda126 = {50, 60, 70, 75, 80, 86, 90};

TEST(GpuSupport, CodeRunsOnItsMajorVersionAndLaterMinorOnes) {
  EXPECT_FALSE(has_code_for(70, kCuda13));  // V100
  EXPECT_TRUE(has_code_for(70, kCuda126));
  EXPECT_TRUE(has_code_for(75, kCuda13));  // T4
  EXPECT_TRUE(has_code_for(89, kCuda13));  // L4, by the code for 8.6
  EXPECT_TRUE(has_code_for(90, kCuda13));  // H100
  EXPECT_FALSE(has_code_for(100, kCuda126));
  EXPECT_FALSE(has_code_for(61, {70, 75}));
  EXPECT_FALSE(has_code_for(80, {86}));
  EXPECT_FALSE(has_code_for(80, {}));
}

TEST(GpuSupport, WheelsAreKnownByTheirRuntime) {
  EXPECT_EQ(wheel_architectures(13000), kCuda13);
  EXPECT_EQ(wheel_architectures(12060), kCuda126);
  EXPECT_EQ(wheel_architectures(12080).front(), 75);
  EXPECT_TRUE(wheel_architectures(11080).empty());
  EXPECT_TRUE(wheel_architectures(0).empty());
}

TEST(GpuSupport, AGpuThatIsOlderThanTheCodeIsToldItsWheel) {
  EXPECT_EQ(
      no_code_for({"cuda:0", "Tesla V100", 70, 16e9}, kCuda13),
      "cuda:0 (Tesla V100) cannot be used: it has compute capability 7.0, and this libtorch has code for 75, "
      "80, "
      "86, 90, 100, 120 only. Its wheel for CUDA 12.6 goes back to 5.0: ./dev setup cu126, and build again");
  EXPECT_EQ(no_code_for({"cuda:1", "", 37, 0}, kCuda13),
            "cuda:1 cannot be used: it has compute capability 3.7, and this libtorch has code for 75, 80, "
            "86, 90, 100, "
            "120 only. No wheel of this torch has code for it: take another GPU");
}

TEST(GpuSupport, AGpuThatIsNewerThanTheCodeIsToldToInstallANewerTorch) {
  EXPECT_EQ(no_code_for({"cuda:0", "NVIDIA B200", 100, 0}, kCuda126),
            "cuda:0 (NVIDIA B200) cannot be used: it has compute capability 10.0, and this libtorch has code "
            "for 50, "
            "60, 70, 75, 80, 86, 90 only. Install a newer torch, and build again");
}

TEST(GpuSupport, WhatIsNotKnownIsNoFault) {
  EXPECT_EQ(no_code_for({"cuda:0", "NVIDIA H100", 90, 0}, kCuda13), "");
  EXPECT_EQ(no_code_for({"cuda:0", "Tesla V100", 0, 0}, kCuda13), "");
  EXPECT_EQ(no_code_for({"cuda:0", "Tesla V100", 70, 0}, {}), "");
}

TEST(GpuSupport, ADriverServesItsMajorVersionAndEarlierOnes) {
  EXPECT_EQ(driver_too_old(12040, 13000),
            "the NVIDIA driver is too old: it serves CUDA up to 12.4, and this libtorch needs 13.0. Install "
            "a newer "
            "driver, or the wheel of torch for CUDA 12.6: ./dev setup cu126, and build again");
  EXPECT_EQ(driver_too_old(13000, 13020), "");
  EXPECT_EQ(driver_too_old(13010, 12060), "");
  EXPECT_EQ(driver_too_old(0, 13000), "");
  EXPECT_EQ(driver_too_old(12040, 0), "");
}

}  // namespace
}  // namespace hetermoe
