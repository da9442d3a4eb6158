#include "hetermoe/device/accelerator.h"

#include <ATen/Context.h>
#include <c10/core/AllocatorConfig.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>

#include "hetermoe/base/error.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

TEST(Accelerator, WithoutADriverItSaysSo) {
  if (dlopen("libcuda.so.1", RTLD_LAZY) != nullptr) GTEST_SKIP() << "an NVIDIA driver is here";
  EXPECT_EQ(num_cuda_devices(), 0);
  EXPECT_EQ(error_of<ConfigError>([] { find_device("cuda:0", "run.device"); }),
            "[run.device] got \"cuda:0\", but CUDA cannot be used: no NVIDIA driver here (no libcuda.so.1)");
}

/// A process that opens CUDA's library, with and without a wish of the user's. Exits with the number.
void exit_with_hardware_queues(const char* wish) {
  if (wish != nullptr)
    ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", wish, 1);
  else
    ::unsetenv("CUDA_DEVICE_MAX_CONNECTIONS");
  open_cuda();
  const char* const queues = std::getenv("CUDA_DEVICE_MAX_CONNECTIONS");
  std::_Exit(queues != nullptr ? std::atoi(queues) : 0);
}

TEST(AcceleratorDeathTest, AGpuGetsAsManyHardwareQueuesAsThereAreUnlessTheUserSaysOtherwise) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_hardware_queues(nullptr), ::testing::ExitedWithCode(32), "");
  EXPECT_EXIT(exit_with_hardware_queues("12"), ::testing::ExitedWithCode(12), "");
}

TEST(Accelerator, UnknownDevicesAreNamed) {
  EXPECT_EQ(error_of<ConfigError>([] { find_device("tpu:0", "run.device"); }),
            "[run.device] no such device: got \"tpu:0\", expected cpu, cuda or cuda:N");
  EXPECT_TRUE(find_device("cpu", "run.device").is_cpu());
}

TEST(Accelerator, GpuProductsAddUpInFp32) {
  use_wide_gpu_sums();
  const at::Context& context = at::globalContext();
  EXPECT_EQ(context.allowBF16ReductionCuBLAS(),
            at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK);
  EXPECT_EQ(context.allowFP16ReductionCuBLAS(),
            at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK);
}

/// libtorch's settings belong to the process.
class AcceleratorSettings : public ::testing::Test {
 protected:
  void TearDown() override { configure_gpus({.fp64 = true}); }
};

TEST_F(AcceleratorSettings, Tf32IsAsAsked) {
  configure_gpus({.tf32 = true});
  EXPECT_TRUE(at::globalContext().allowTF32CuBLAS());
  configure_gpus({.tf32 = false});
  EXPECT_FALSE(at::globalContext().allowTF32CuBLAS());
}

TEST_F(AcceleratorSettings, AttentionKeepsAllScoresInFp64Alone) {
  configure_gpus({});
  EXPECT_FALSE(at::globalContext().userEnabledMathSDP());
  EXPECT_TRUE(at::globalContext().userEnabledFlashSDP());
  configure_gpus({.fp64 = true});
  EXPECT_TRUE(at::globalContext().userEnabledMathSDP());
}

TEST_F(AcceleratorSettings, DeterministicKernelsOrAnError) {
  configure_gpus({.deterministic = true});
  EXPECT_TRUE(at::globalContext().deterministicAlgorithms());
  // Attention's kernels ask for this one: with it they would only warn.
  EXPECT_FALSE(at::globalContext().deterministicAlgorithmsWarnOnly());
  EXPECT_STREQ(::getenv("CUBLAS_WORKSPACE_CONFIG"), ":4096:8");
  configure_gpus({});
  EXPECT_FALSE(at::globalContext().deterministicAlgorithms());
}

TEST_F(AcceleratorSettings, TheAllocatorIsToldByName) {
  configure_gpus({.expandable_segments = true});
  EXPECT_EQ(c10::CachingAllocator::getAllocatorSettings(), "expandable_segments:True");
  configure_gpus({.expandable_segments = false});
  EXPECT_EQ(c10::CachingAllocator::getAllocatorSettings(), "expandable_segments:False");
}

TEST(Accelerator, ACpuHasNoMemoryOfAGpu) {
  EXPECT_EQ(gpu_peak({c10::DeviceType::CPU}), 0);
  restart_gpu_peak({c10::DeviceType::CPU});
}

}  // namespace
}  // namespace hetermoe
