#include "hetermoe/nn/cpu_kernels.h"

#include <gtest/gtest.h>

#include "tests/nn/kernel_cases.h"

namespace hetermoe::testing {
namespace {

TEST(CpuSums, SumOfSquares) {
  const at::Tensor x = wave({1003}, 2, 0.7);
  EXPECT_NEAR(sum_of_squares(x.const_data_ptr<float>(), 1003),
              x.to(at::kDouble).square().sum().item<double>(), 1e-9);
  EXPECT_EQ(sum_of_squares(nullptr, 0), 0);
}

}  // namespace
}  // namespace hetermoe::testing
