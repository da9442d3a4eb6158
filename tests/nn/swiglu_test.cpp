#include "hetermoe/nn/swiglu.h"

#include <c10/core/GradMode.h>

#include <gtest/gtest.h>

#include "hetermoe/model/op_cost.h"
#include "tests/nn/kernel_cases.h"
#include "tests/nn/peak_of.h"

namespace hetermoe::testing {
namespace {

TEST(Swiglu, FastEqualsGeneric) {
  for (const auto& [rows, width] : kShapes) {
    const at::Tensor in = wave({rows, 2 * width}, 6, 0.731), weights = wave({rows}, 1, 0.37);
    const at::Tensor dact = wave({rows, width}, 1, 0.913);
    for (const at::Tensor& w : {weights, at::Tensor()}) {
      EXPECT_LE(deviation(swiglu_forward(in, w), swiglu_forward(in, w, Path::kGeneric)), 1e-6);
      const SwigluGradient fast = swiglu_backward(in, w, dact, RecomputeAct::kYes);
      const SwigluGradient slow = swiglu_backward(in, w, dact, RecomputeAct::kYes, Path::kGeneric);
      EXPECT_LE(deviation(fast.dgate_up_C2F, slow.dgate_up_C2F), 1e-6);
      EXPECT_LE(deviation(fast.act_CF, slow.act_CF), 1e-6);
      if (w.defined()) {
        EXPECT_LE(deviation(fast.dweights_C, slow.dweights_C), 1e-5);
      }
      EXPECT_FALSE(swiglu_backward(in, w, dact, RecomputeAct::kNo).act_CF.defined());
    }
  }
}

TEST(Swiglu, FastSurvivesExtremeInputs) {
  const at::Tensor in = at::tensor({-1e4f, -100.f, -88.f, 0.f, 88.f, 1e4f}).view({6, 1});
  const at::Tensor gate_up = at::cat({in, at::ones_like(in)}, 1);
  const at::Tensor got = swiglu_forward(gate_up, at::Tensor());
  EXPECT_TRUE(at::allclose(got, at::silu(in), 1e-6, 1e-30)) << got;
  const SwigluGradient grad = swiglu_backward(gate_up, at::Tensor(), at::ones_like(in), RecomputeAct::kNo);
  EXPECT_TRUE(grad.dgate_up_C2F.isfinite().all().item<bool>());
}

TEST(Swiglu, PassesNansOn) {
  const at::Tensor in = at::full({1, 32}, NAN);
  EXPECT_TRUE(swiglu_forward(in, at::Tensor()).isnan().all().item<bool>());
}

/// The activation of GPT-OSS from differentiable ops, with numbers on both sides of each limit and on them.
TEST(Swiglu, WithLimitsEqualsAutograd) {
  const GatedActivation how{1.5, 1.702};
  at::Tensor in = wave({40, 24}, 4, 0.731, at::kDouble);
  in[0][0] = 1.5, in[0][12] = 1.5, in[1][13] = -1.5;
  in.requires_grad_();
  at::Tensor weights = wave({40}, 1, 0.37, at::kDouble).requires_grad_();
  const at::Tensor gate = in.narrow(1, 0, 12).clamp_max(how.limit);
  const at::Tensor up = in.narrow(1, 12, 12).clamp(-how.limit, how.limit);
  const at::Tensor expected = (up + 1) * gate * (how.alpha * gate).sigmoid() * weights.unsqueeze(1);
  const at::Tensor dact = wave({40, 12}, 1, 0.913, at::kDouble);
  expected.backward(dact);
  const c10::NoGradGuard no_grad;
  EXPECT_LE(deviation(swiglu_forward(in.detach(), weights.detach(), Path::kAuto, how), expected), 1e-14);
  const SwigluGradient got =
      swiglu_backward(in.detach(), weights.detach(), dact, RecomputeAct::kYes, Path::kAuto, how);
  EXPECT_LE(deviation(got.dgate_up_C2F, in.grad()), 1e-14);
  EXPECT_LE(deviation(got.dweights_C, weights.grad()), 1e-14);
  EXPECT_LE(deviation(got.act_CF, expected.detach()), 1e-14);
  // In 16 bits and in place, as experts have it.
  const at::Tensor narrow = in.detach().to(at::kBFloat16), d16 = dact.to(at::kBFloat16);
  const at::Tensor w32 = weights.detach().to(at::kFloat);
  const SwigluGradient apart = swiglu_backward(narrow, w32, d16, RecomputeAct::kYes, Path::kAuto, how);
  SwigluGradient in_place{narrow.clone(), d16.clone(), at::empty_like(w32)};
  swiglu_backward_out(in_place, in_place.dgate_up_C2F, w32, in_place.act_CF, Path::kAuto, how);
  EXPECT_TRUE(at::equal(in_place.dgate_up_C2F, apart.dgate_up_C2F));
  EXPECT_TRUE(at::equal(in_place.act_CF, apart.act_CF));
  EXPECT_LE(deviation(apart.act_CF, got.act_CF), 3e-2);  // gradients jump at the limits
}

/// All rows at once, in the order of operations that every block must have.
SwigluGradient whole_backward(const at::Tensor& in, const at::Tensor& weights, const at::Tensor& dact_CF) {
  const at::ScalarType wide = in.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const i64 width = in.size(1) / 2;
  const at::Tensor gate = in.narrow(1, 0, width).to(wide), up = in.narrow(1, width, width).to(wide);
  const at::Tensor sigmoid = gate.sigmoid(), silu = gate * sigmoid, plain = silu * up;
  const at::Tensor dact = dact_CF.to(wide), d = dact * weights.unsqueeze(1);
  const at::Tensor dgate = d * up * (sigmoid + silu * (1 - sigmoid));
  return {at::cat({dgate, d * silu}, 1).to(in.scalar_type()),
          (plain * weights.unsqueeze(1)).to(in.scalar_type()), (dact * plain).sum(1)};
}

constexpr i64 kRows = 3000, kWidth = 500;  // many blocks

TEST(Swiglu, BlocksOfRowsEqualTheWholeAndInFp64ToTheBit) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kDouble}) {
    const at::Tensor in = wave({kRows, 2 * kWidth}, 3, 0.731, dtype),
                     dact = wave({kRows, kWidth}, 1, 0.9, dtype);
    const at::Tensor weights = wave({kRows}, 1, 0.37, dtype == at::kDouble ? at::kDouble : at::kFloat);
    const SwigluGradient expected = whole_backward(in, weights, dact);
    SwigluGradient got{in.clone(), dact.clone(), at::empty_like(weights)};  // in the place of its inputs
    swiglu_backward_out(got, got.dgate_up_C2F, weights, got.act_CF, Path::kGeneric);
    // libtorch's exponentials differ in the last fp32 bit at the end of a tensor.
    const double tolerance = dtype == at::kDouble ? 0 : 1e-6, rounded = dtype == at::kDouble ? 0 : 0.004;
    EXPECT_LE(deviation(got.dgate_up_C2F, expected.dgate_up_C2F), rounded) << dtype;
    EXPECT_LE(deviation(got.act_CF, expected.act_CF), rounded) << dtype;
    EXPECT_LE(deviation(got.dweights_C, expected.dweights_C), tolerance) << dtype;
    const at::Tensor act = at::silu(in.narrow(1, 0, kWidth)) * in.narrow(1, kWidth, kWidth);
    EXPECT_TRUE(swiglu_forward(in, weights, Path::kGeneric).equal((act * weights.unsqueeze(1)).to(dtype)))
        << dtype;
  }
}

TEST(Swiglu, SixteenBitWorkIsOneBlock) {
  const at::Tensor in = wave({kRows, 2 * kWidth}, 3, 0.731, at::kBFloat16), weights = wave({kRows}, 1, 0.37);
  SwigluGradient out{in.clone(), wave({kRows, kWidth}, 1, 0.9, at::kBFloat16), at::empty_like(weights)};
  const Bytes backward = peak_of([&] { swiglu_backward_out(out, in, weights, out.act_CF, Path::kGeneric); });
  EXPECT_LE(backward, kActivationBlockBytes / 16);
  EXPECT_GE(backward, kActivationBlockBytes / 32);  // the count of temporaries is not far too high
  const Bytes forward = peak_of([&] { swiglu_forward(in, weights, Path::kGeneric); });
  EXPECT_LE(forward, 2 * kRows * kWidth + kActivationBlockBytes / 16);  // its result, and a block
}

TEST(Swiglu, GradientEqualsAutograd) {
  const at::Tensor in = wave({5, 14}, 2, 0.7, at::kDouble).requires_grad_();
  const at::Tensor weights = wave({5}, 1, 0.9, at::kDouble).requires_grad_();
  const at::Tensor dact = wave({5, 7}, 1, 1.1, at::kDouble);
  const auto halves = in.chunk(2, 1);
  const at::Tensor plain = halves[0] * halves[0].sigmoid() * halves[1] * weights.unsqueeze(1);
  const auto expected = torch::autograd::grad({plain}, {in, weights}, {dact});
  const SwigluGradient got = swiglu_backward(in.detach(), weights.detach(), dact, RecomputeAct::kYes);
  EXPECT_LE(deviation(got.dgate_up_C2F, expected[0]), 1e-12);
  EXPECT_LE(deviation(got.dweights_C, expected[1]), 1e-12);
  EXPECT_LE(deviation(got.act_CF, plain.detach()), 1e-12);
}

}  // namespace
}  // namespace hetermoe::testing
