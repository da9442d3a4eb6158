#include "hetermoe/nn/rms_norm.h"

#include <torch/csrc/autograd/autograd.h>

#include "tests/kernels/cases.h"

namespace hetermoe::testing {
namespace {

constexpr double kEps = 1e-5;

struct ExactNorm {
  at::Tensor out, dx, dweight;
};

/// In fp64, from the formula.
ExactNorm exact(const at::Tensor& x16, const at::Tensor& weight16, const at::Tensor& dout16) {
  const at::Tensor x = x16.to(at::kDouble), weight = weight16.to(at::kDouble), dout = dout16.to(at::kDouble);
  const at::Tensor rstd = (x.square().mean(-1, true) + kEps).rsqrt(), normed = x * rstd,
                   weighted = dout * weight;
  return {weight * normed, rstd * (weighted - normed * (weighted * normed).mean(-1, true)),
          (dout * normed).sum(0)};
}

TEST(NormKernels, EqualTheFormulaForAllDtypesAndWidths) {
  with_blocks_of({1, 3}, [] {
    for (const at::ScalarType dtype : kAllDtypes) {
      for (const auto& [rows, width] : kRowsAndWidths) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width) + " " + c10::toString(dtype));
        const at::Tensor x = values({rows, width}, dtype, 1), weight = values({width}, dtype, 2),
                         dout = values({rows, width}, dtype, 3);
        const ExactNorm expected = exact(x, weight, dout);
        const NormForward forward = rms_norm_forward(x, weight, kEps);
        EXPECT_LE(deviation(forward.out, expected.out), 2 * one_rounding(dtype));  // it rounds twice
        const NormGradient backward = rms_norm_backward(x, weight, forward.rstd, dout);
        EXPECT_LE(deviation(backward.dx, expected.dx, 1), 2 * one_rounding(dtype));
        EXPECT_LE(deviation(backward.dweight_D, expected.dweight), 4 * one_rounding(dtype));
      }
    }
  });
}

/// dx is the difference of two numbers of the size of rstd * weight * dout. In a row of one element it is eps
/// / (x^2 + eps) times them, so its relative error is their rounding times 3.6e5: only beside the terms can
/// it be compared, also between a GPU, which contracts products and sums, and the host.
TEST(NormKernels, TheGradientOfANarrowRowIsADifference) {
  const HostKernels host;
  const at::Tensor x = values({1, 1}, at::kFloat, 2), weight = values({1}, at::kFloat, 3),
                   dout = values({1, 1}, at::kFloat, 5);
  const NormForward forward = rms_norm_forward(x, weight, kEps);
  const at::Tensor dx = rms_norm_backward(x, weight, forward.rstd, dout).dx;
  const ExactNorm expected = exact(x, weight, dout);
  const double terms = (forward.rstd * weight * dout).abs().item<double>();
  EXPECT_GT(terms / expected.dx.abs().item<double>(), 3e5);
  EXPECT_LE(deviation(dx, expected.dx, terms), 4 * 0x1p-23);
  EXPECT_GT(deviation(dx, expected.dx), 1e-3) << "of dx itself: no tolerance of fp32 holds for it";
}

TEST(NormKernels, EqualTheGenericPathOverManyRows) {
  with_blocks_of({1, 4}, [] {
    for (const at::ScalarType dtype : kAllDtypes) {
      const at::Tensor x = values({2, 700, 24}, dtype, 1), weight = values({24}, dtype, 2),
                       dout = values({2, 700, 24}, dtype, 3);  // more rows than teams
      const NormForward own = rms_norm_forward(x, weight, kEps),
                        generic = rms_norm_forward(x, weight, kEps, Path::kGeneric);
      EXPECT_LE(deviation(own.rstd, generic.rstd), dtype == at::kDouble ? 1e-14 : 1e-6);
      EXPECT_LE(deviation(own.out, generic.out), one_rounding(dtype));
      const NormGradient a = rms_norm_backward(x, weight, own.rstd, dout),
                         b = rms_norm_backward(x, weight, generic.rstd, dout, Path::kGeneric);
      EXPECT_LE(deviation(a.dx, b.dx), one_rounding(dtype));
      EXPECT_LE(deviation(a.dweight_D, b.dweight_D), 4 * one_rounding(dtype));
    }
  });
}

TEST(NormKernels, SumsThatFindNoRoomInSharedMemoryAreTheSame) {
  const HostKernels host;
  const i64 width = 12000;  // 48 KB in fp32
  const at::Tensor x = values({3, width}, at::kFloat, 1), weight = values({width}, at::kFloat, 2),
                   dout = values({3, width}, at::kFloat, 3);
  const NormForward forward = rms_norm_forward(x, weight, kEps);
  EXPECT_LE(
      deviation(rms_norm_backward(x, weight, forward.rstd, dout).dweight_D, exact(x, weight, dout).dweight),
      1e-6);
}

TEST(NormKernels, ResidualAndNormAreOnePassEachWay) {
  for (const at::ScalarType dtype : kAllDtypes) {
    const auto leaves = [&] {
      return std::vector<at::Tensor>{values({9, 36}, dtype, 1).requires_grad_(),
                                     values({9, 36}, dtype, 2).requires_grad_(),
                                     values({36}, dtype, 3).requires_grad_()};
    };
    const std::vector<at::Tensor> seeds = {values({9, 36}, dtype, 4), values({9, 36}, dtype, 5)};
    const auto apart = leaves(), fused = leaves();
    const at::Tensor sum = apart[0] + apart[1], out = rms_norm(sum, apart[2], kEps);
    const auto expected = torch::autograd::grad({sum, out}, apart, seeds);
    const HostKernels host(2);
    const LaunchRecorder recorder;
    const ResidualNorm got = residual_norm(fused[0], fused[1], fused[2], kEps);
    const auto grads = torch::autograd::grad({got.sum, got.out}, fused, seeds);
    EXPECT_EQ(recorder.total(), 3);
    EXPECT_TRUE(got.sum.equal(sum));
    EXPECT_LE(deviation(got.out, out), one_rounding(dtype));
    for (std::size_t i = 0; i < grads.size(); ++i)
      EXPECT_LE(deviation(grads[i], expected[i]), 4 * one_rounding(dtype));
  }
}

TEST(NormKernels, NoRowsGiveAZeroGradient) {
  const HostKernels host;
  const at::Tensor none = at::empty({0, 20}, at::kHalf), weight = values({20}, at::kHalf, 2);
  const NormForward forward = rms_norm_forward(none, weight, kEps);
  EXPECT_TRUE(
      rms_norm_backward(none, weight, forward.rstd, none).dweight_D.equal(at::zeros({20}, at::kHalf)));
}

TEST(NormKernels, AreOneAndTwoLaunches) {
  const HostKernels host;
  const at::Tensor x = values({3, 20}, at::kHalf, 1), weight = values({20}, at::kHalf, 2);
  const LaunchRecorder recorder;
  const NormForward forward = rms_norm_forward(x, weight, kEps);
  rms_norm_backward(x, weight, forward.rstd, x);
  EXPECT_EQ(recorder.counts(),
            (std::map<std::string, i64>{{"norm_forward", 1}, {"norm_backward", 1}, {"sum_columns", 1}}));
}

}  // namespace
}  // namespace hetermoe::testing
