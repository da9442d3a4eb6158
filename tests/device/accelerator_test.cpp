#include "hetermoe/device/accelerator.h"

#include <ATen/Context.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

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

TEST(Accelerator, UnknownDevicesAreNamed) {
  EXPECT_EQ(error_of<ConfigError>([] { find_device("tpu:0", "run.device"); }),
            "[run.device] no such device: got \"tpu:0\", expected cpu, cuda or cuda:N");
  EXPECT_TRUE(find_device("cpu", "run.device").is_cpu());
}

TEST(Accelerator, CodeRunsOnItsMajorVersionAndLaterMinorOnes) {
  const std::vector<int> cuda13 = {75, 80, 86, 90, 100, 120}, cuda12 = {50, 60, 70, 75, 80, 86, 90};
  EXPECT_FALSE(has_code_for(70, cuda13));  // V100
  EXPECT_TRUE(has_code_for(70, cuda12));
  EXPECT_TRUE(has_code_for(75, cuda13));  // T4
  EXPECT_TRUE(has_code_for(89, cuda13));  // L4, by the code for 8.6
  EXPECT_TRUE(has_code_for(90, cuda13));  // H100
  EXPECT_FALSE(has_code_for(100, cuda12));
  EXPECT_FALSE(has_code_for(61, {70, 75}));
  EXPECT_FALSE(has_code_for(80, {86}));
  EXPECT_FALSE(has_code_for(80, {}));
}

TEST(Accelerator, GpuProductsAddUpInFp32) {
  use_wide_gpu_sums();
  const at::Context& context = at::globalContext();
  EXPECT_EQ(context.allowBF16ReductionCuBLAS(),
            at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK);
  EXPECT_EQ(context.allowFP16ReductionCuBLAS(),
            at::CuBLASReductionOption::DisallowReducedPrecisionAllowSplitK);
}

}  // namespace
}  // namespace hetermoe
