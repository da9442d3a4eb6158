#include "hetermoe/nn/rms_norm.h"

#include <gtest/gtest.h>

#include "tests/nn/kernel_cases.h"

namespace hetermoe::testing {
namespace {

TEST(RmsNorm, FastEqualsGeneric) {
  for (const auto& [rows, width] : kShapes) {
    const at::Tensor x = wave({rows, width}, 3, 0.617), weight = wave({width}, 1, 0.3) + 1;
    const at::Tensor dout = wave({rows, width}, 1, 0.411);
    const NormForward fast = rms_norm_forward(x, weight, 1e-5);
    const NormForward slow = rms_norm_forward(x, weight, 1e-5, Path::kGeneric);
    EXPECT_LE(deviation(fast.out, slow.out), 1e-6);
    EXPECT_LE(deviation(fast.rstd, slow.rstd), 1e-6);
    const NormGradient fast_grad = rms_norm_backward(x, weight, fast.rstd, dout);
    const NormGradient slow_grad = rms_norm_backward(x, weight, fast.rstd, dout, Path::kGeneric);
    EXPECT_LE(deviation(fast_grad.dx, slow_grad.dx, 0.1), 1e-5);
    EXPECT_LE(deviation(fast_grad.dweight_D, slow_grad.dweight_D, 1e-3), 1e-5);
  }
}

TEST(RmsNorm, GradientEqualsAutograd) {
  const at::Tensor x = wave({2, 3, 8}, 2, 0.7, at::kDouble).requires_grad_();
  const at::Tensor weight = (wave({8}, 1, 0.9, at::kDouble) + 1).requires_grad_();
  const at::Tensor dout = wave({2, 3, 8}, 1, 1.1, at::kDouble);
  const at::Tensor plain = weight * x * (x.square().mean(-1, true) + 1e-5).rsqrt();
  const auto expected = torch::autograd::grad({plain}, {x, weight}, {dout});
  const at::Tensor mine = rms_norm(x, weight, 1e-5);
  const auto got = torch::autograd::grad({mine}, {x, weight}, {dout});
  EXPECT_LE(deviation(mine.detach(), plain.detach()), 1e-13);
  EXPECT_LE(deviation(got[0], expected[0]), 1e-12);
  EXPECT_LE(deviation(got[1], expected[1]), 1e-12);
}

}  // namespace
}  // namespace hetermoe::testing
