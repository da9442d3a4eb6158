#include "hetermoe/kernels/launch.h"

#include <gtest/gtest.h>

#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/kernels/nvrtc.h"
#include "hetermoe/kernels/swiglu.h"

namespace hetermoe::kernels {
namespace {

const c10::Device kCpu(c10::DeviceType::CPU);

/// One row of one element: silu(gate) * up.
float launch_one(float gate, float up) {
  const float in[2] = {gate, up};
  float out = 0;
  launch("swiglu_forward", {at::kFloat}, {.blocks = 1, .threads = 32},
         SwigluForward{in, nullptr, &out, 1, 1, 0}, kCpu);
  return out;
}

TEST(Launch, CountsByFunctionWhileARecorderLives) {
  const HostKernels host;
  launch_one(1, 1);  // of no recorder
  const LaunchRecorder outer;
  launch_one(1, 2);
  {
    const LaunchRecorder inner;
    launch_one(1, 3);
    EXPECT_EQ(inner.total(), 1);
  }
  launch("swiglu_forward", {at::kFloat}, {.blocks = 0}, SwigluForward{}, kCpu);  // nothing to launch
  EXPECT_EQ(outer.counts(), (std::map<std::string, i64>{{"swiglu_forward", 2}}));
}

TEST(Launch, CountsThoseOfAllThreads) {
  const HostKernels host;
  const LaunchRecorder recorder;
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i)
    threads.emplace_back([] {
      for (int n = 0; n < 100; ++n) EXPECT_NEAR(launch_one(0.5f, 2), 0.6224593f, 1e-6);
    });
  threads.clear();
  EXPECT_EQ(recorder.total(), 400);
}

TEST(Launch, ACpuHasKernelsOnlyWhileHostKernelsLive) {
  EXPECT_FALSE(has_kernels(kCpu));
  EXPECT_FALSE(kernels_missing(kCpu).empty());
  EXPECT_THROW(launch_one(1, 1), InternalError);
  {
    const HostKernels host;
    EXPECT_TRUE(has_kernels(kCpu));
    EXPECT_EQ(kernels_missing(kCpu), "");
  }
  EXPECT_FALSE(has_kernels(kCpu));
}

TEST(Launch, WrongArgumentsElementsAndBlocksAreErrorsOfOurOwn) {
  const HostKernels host;
  EXPECT_THROW(launch("swiglu_forward", {at::kFloat}, {1, 32}, SwigluBackward{}, kCpu), InternalError);
  EXPECT_THROW(launch("swiglu_forward", {at::kInt}, {1, 32}, SwigluForward{}, kCpu), InternalError);
  EXPECT_THROW(launch("swiglu_sideways", {at::kFloat}, {1, 32}, SwigluForward{}, kCpu), InternalError);
  EXPECT_THROW(launch("swiglu_forward", {at::kFloat}, {1, 33}, SwigluForward{}, kCpu), InternalError);
}

TEST(Launch, RowsGetWholeWarps) {
  EXPECT_EQ(threads_for(0), 32);
  EXPECT_EQ(threads_for(33), 64);
  EXPECT_EQ(threads_for(1 << 20), 256);
}

/// In a process of its own, because the library is looked for once.
void expect_missing(const char* value, const char* sentence) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(
      {
        setenv("HETERMOE_NVRTC", value, 1);
        const std::string why_not = kernels_missing({c10::DeviceType::CUDA, 0});
        std::cerr << why_not << "|" << has_kernels({c10::DeviceType::CUDA, 0});
        std::_Exit(0);
      },
      ::testing::ExitedWithCode(0), sentence);
}

TEST(Launch, WithoutNvrtcASentenceSaysWhatToDo) {
  expect_missing(
      "/no/such/libnvrtc.so",
      "no NVRTC here .cannot open HETERMOE_NVRTC=/no/such/libnvrtc.so.: GPUs use libtorch's kernels.*"
      "pip install.*0");
  expect_missing("off", "switched off .HETERMOE_NVRTC=off.: libtorch's are used.*0");
  expect_missing("libc.so.6", "too old: it has no nvrtcCreateProgram.*0");
}

}  // namespace
}  // namespace hetermoe::kernels
