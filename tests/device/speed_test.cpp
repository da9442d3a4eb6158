#include "hetermoe/device/speed.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

namespace hetermoe {
namespace {

TEST(Speed, ACpuHasOneOfEveryKind) {
  const DeviceSpeed speed = measure_speed({c10::DeviceType::CPU}, 0.001);
  // No processor of today is outside of this.
  for (const double value : {speed.fp32, speed.bf16, speed.fp16, speed.copy}) {
    EXPECT_GT(value, 1e7);
    EXPECT_LT(value, 1e15);
  }
}

}  // namespace
}  // namespace hetermoe
