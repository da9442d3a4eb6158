#include "hetermoe/device/accelerator.h"

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

}  // namespace
}  // namespace hetermoe
