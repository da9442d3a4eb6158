#include "hetermoe/nn/products.h"

#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <optional>

#include "hetermoe/base/types.h"
#include "hetermoe/kernels/host_kernels.h"
#include "tests/nn/compare.h"
#include "tests/nn/peak_of.h"
#include "tests/support/launch_count.h"

namespace hetermoe {
namespace {

/// Half a unit in the last place, as a share of the value, and a little for the sums in fp32.
double rounding(at::ScalarType dtype) {
  switch (dtype) {
    case at::kBFloat16:
      return std::ldexp(1.0, -8) + 1e-6;
    case at::kHalf:
      return std::ldexp(1.0, -11) + 1e-6;
    case at::kFloat:
      return 1e-5;
    default:
      return 1e-12;
  }
}

class Products : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  void SetUp() override { at::manual_seed(1); }
  /// Above zero, so that no sum cancels and every element can be held to the rounding of its own value.
  at::Tensor positive(i64 rows, i64 columns) const { return at::rand({rows, columns}).to(GetParam()); }
  /// Every element is the exact one, rounded once.
  static void expect_rounded(const at::Tensor& got, const at::Tensor& exact) {
    ASSERT_EQ(got.scalar_type(), GetParam());
    const at::Tensor off = (got.to(at::kDouble) - exact).abs() / exact.abs();
    EXPECT_LE(off.max().item<double>(), rounding(GetParam()));
  }
};

TEST_P(Products, AreRoundedOnce) {
  const at::Tensor a = positive(33, 129), b = positive(129, 65);
  at::Tensor out = at::full({33, 65}, std::nan(""), a.options());
  multiply_into(out, a, b);
  expect_rounded(out, at::mm(a.to(at::kDouble), b.to(at::kDouble)));
}

TEST_P(Products, TakeTransposedOperandsAndParts) {
  const at::Tensor a = positive(129, 40).t().narrow(0, 3, 33), b = positive(65, 129).t();
  at::Tensor whole = at::zeros({70, 65}, a.options());
  at::Tensor out = whole.narrow(0, 10, 33);
  multiply_into(out, a, b);
  expect_rounded(whole.narrow(0, 10, 33), at::mm(a.to(at::kDouble), b.to(at::kDouble)));
  EXPECT_EQ(whole.narrow(0, 0, 10).abs().max().item<double>(), 0);
  EXPECT_EQ(whole.narrow(0, 43, 27).abs().max().item<double>(), 0);
}

TEST_P(Products, AddUp) {
  const at::Tensor a = positive(129, 33).t(), b = positive(129, 65);
  const at::Tensor start = positive(33, 65);
  const at::Tensor sum = start.clone();
  add_product_(sum, a, b);
  expect_rounded(sum, at::addmm(start.to(at::kDouble), a.to(at::kDouble), b.to(at::kDouble)));
}

TEST_P(Products, AddUpInFp32) {
  const bool low = at::elementSize(GetParam()) < 4;
  at::Tensor sum = at::zeros({33, 65}, low ? at::kFloat : GetParam());
  at::Tensor exact = at::zeros({33, 65}, at::kDouble);
  for (int i = 0; i < 64; ++i) {
    const at::Tensor a = positive(129, 33).t(), b = positive(129, 65);
    add_product_(sum, a, b);
    exact.addmm_(a.to(at::kDouble), b.to(at::kDouble));
  }
  EXPECT_EQ(sum.scalar_type(), low ? at::kFloat : GetParam());
  EXPECT_LE(((sum - exact).abs() / exact).max().item<double>(), rounding(GetParam()));
}

/// One operator, as a GPU is asked for it, and no rounding to 16 bits: the sum of an fp32 product of the
/// widened factors.
TEST(GradientSums, OfAGpuAddTheProductWhole) {
  const kernels::HostKernels on;
  at::manual_seed(1);
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf}) {
    const at::Tensor a = at::rand({300, 4500}).to(dtype).t(), b = at::rand({300, 1200}).to(dtype);
    const at::Tensor sum = at::rand({4500, 1200}), start = sum.clone();
    const testing::OperatorCount operators;
    testing::OperatorCount::label("sum");
    const Bytes peak = testing::peak_of([&] { add_product_(sum, a, b); });
    const std::map<std::string, std::map<std::string, i64>> one = {{"sum", {{"aten::addmm", 1}}}};
    EXPECT_EQ(operators.counts(), one);
    const at::Tensor exact = at::addmm(start.to(at::kDouble), a.to(at::kDouble), b.to(at::kDouble));
    EXPECT_LE(((sum - exact).abs() / exact).max().item<double>(), 1e-5);
    EXPECT_LE(peak, 1 << 16);
  }
}

/// dout of 16 bits or wider than x, into sums of any dtype.
TEST(GradientSums, OfWeightsAreExactOrRoundedToTheDtypeOfTheSum) {
  at::manual_seed(1);
  for (const bool on_gpu : {false, true}) {
    const std::optional<kernels::HostKernels> on =
        on_gpu ? std::make_optional<kernels::HostKernels>() : std::nullopt;
    for (const auto& [of_sum, of_dout] :
         {std::pair(at::kFloat, at::kBFloat16), std::pair(at::kFloat, at::kFloat),
          std::pair(at::kBFloat16, at::kBFloat16), std::pair(at::kBFloat16, at::kFloat)}) {
      const at::Tensor dout = at::rand({129, 33}).to(of_dout), x = at::rand({129, 65}).to(at::kBFloat16);
      const at::Tensor sum = at::ones({33, 65}, of_sum);
      add_weight_gradient_(sum, dout, x);
      const at::Tensor exact = at::mm(dout.t().to(at::kDouble), x.to(at::kDouble)) + 1;
      const double roundings = of_sum == at::kBFloat16 && of_dout == at::kFloat ? 2 : 1;
      EXPECT_LE(((sum - exact).abs() / exact).max().item<double>(), roundings * rounding(of_sum))
          << of_sum << " " << of_dout;
    }
  }
}

TEST(GradientSums, OfAnyDtypeAreExactInFp32WithoutAWholeCopy) {
  const i64 rows = 9000, width = 1000;  // more than two blocks
  const at::Tensor gradient =
      at::arange(rows * width, at::kFloat).sin_().view({rows, width}).to(at::kBFloat16);
  at::Tensor sum = at::ones({rows, width});
  const Bytes peak = testing::peak_of([&] { add_gradient_(sum, gradient); });
  EXPECT_TRUE(sum.equal(gradient.to(at::kFloat) + 1));
  EXPECT_LE(peak, 16 << 20);
  at::Tensor vector = at::ones({3});
  add_gradient_(vector, at::ones({3}, at::kHalf));
  EXPECT_TRUE(vector.eq(2).all().item<bool>());
}

TEST_P(Products, LinearHasTheGradientsOfLinear) {
  const at::Tensor x = positive(33, 129).requires_grad_(), weight = positive(65, 129).requires_grad_();
  const at::Tensor dout = positive(33, 65);
  const at::Tensor out = apply_linear(x, weight);
  expect_rounded(out.detach(), at::linear(x.to(at::kDouble), weight.to(at::kDouble)).detach());
  const auto grads = torch::autograd::grad({out}, {x, weight}, {dout});
  expect_rounded(grads[0], at::mm(dout.to(at::kDouble), weight.detach().to(at::kDouble)));
  expect_rounded(grads[1], at::mm(dout.t().to(at::kDouble), x.detach().to(at::kDouble)));
}

INSTANTIATE_TEST_SUITE_P(Types, Products,
                         ::testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace hetermoe
