// The one-pass ops of a CPU in bf16 and fp16: in fp32 inside, rounded once, the same with any number of
// threads.
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <cmath>

#include "hetermoe/nn/causal_attention.h"
#include "hetermoe/nn/cpu_rows.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/rms_norm.h"
#include "hetermoe/nn/rope.h"
#include "hetermoe/nn/rows.h"
#include "hetermoe/nn/swiglu.h"
#include "tests/nn/kernel_cases.h"
#include "tests/nn/with_threads.h"

namespace hetermoe::testing {
namespace {

class SixteenBit : public ::testing::TestWithParam<at::ScalarType> {
 protected:
  at::Tensor low(at::IntArrayRef shape, double scale, double step) const {
    return wave(shape, scale, step, GetParam());
  }
  /// Of a value, when rounded once, and a little for fp32.
  double rounding() const { return std::ldexp(1.0, GetParam() == at::kBFloat16 ? -8 : -11) + 1e-6; }
};

at::Tensor fp32(const at::Tensor& x) { return x.to(at::kFloat); }

/// `got` is `wide`, in fp32, rounded.
::testing::AssertionResult is_rounded(const at::Tensor& got, const at::Tensor& wide) {
  if (got.equal(wide.to(got.scalar_type()))) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure() << got.sizes() << " is not the fp32 result, rounded";
}

TEST_P(SixteenBit, EveryNumberConvertsAsInLibtorch) {
  const at::Tensor bits = at::arange(1 << 16, at::kInt).to(at::kShort), numbers = bits.view(GetParam());
  std::vector<float> wide(1 << 16);
  at::Tensor back = at::empty_like(numbers);
  with_row_type(numbers, [&](auto of) {
    using T = decltype(of);
    if constexpr (!std::is_same_v<T, float>) {
      widen(numbers.const_data_ptr<T>(), wide.data(), 1 << 16);
      narrow(wide.data(), back.mutable_data_ptr<T>(), 1 << 16);
    }
  });
  const at::Tensor expected = numbers.to(at::kFloat), got = at::tensor(wide);
  const at::Tensor number = expected.isnan().logical_not();
  EXPECT_TRUE(got.masked_select(number).equal(expected.masked_select(number)));
  EXPECT_TRUE(got.isnan().equal(expected.isnan()));
  EXPECT_TRUE(back.masked_select(number).equal(numbers.masked_select(number)));
  EXPECT_TRUE(back.isnan().equal(expected.isnan()));
}

TEST_P(SixteenBit, FloatsRoundToNearestEven) {
  // Halfway, just below and above it, overflows, numbers below the normal range; a length that is no
  // multiple.
  at::Tensor x = at::cat({wave({1001}, 3, 0.37), at::full({1}, 1e30f), at::full({1}, -INFINITY),
                          at::full({1}, 3e-6f), at::full({1}, 1e-40f), at::zeros({1})});
  const at::Tensor halfway = at::arange(256, at::kFloat).mul(std::ldexp(1.0, -9)).add(1);
  x = at::cat({x, halfway, halfway * (1 + 1e-7f), halfway * (1 - 1e-7f),
               1 + at::arange(4096, at::kFloat).mul(std::ldexp(1.0, -12))});
  at::Tensor got = at::empty(x.sizes(), GetParam());
  with_row_type(got, [&](auto of) {
    using T = decltype(of);
    if constexpr (!std::is_same_v<T, float>)
      narrow(x.const_data_ptr<float>(), got.mutable_data_ptr<T>(), x.numel());
  });
  EXPECT_TRUE(got.equal(x.to(GetParam())));
}

TEST_P(SixteenBit, SwigluIsThatOfFp32Rounded) {
  for (const auto& [rows, width] : kShapes) {
    const at::Tensor in = low({rows, 2 * width}, 6, 0.731), dact = low({rows, width}, 1, 0.913);
    for (const at::Tensor& weights : {wave({rows}, 1, 0.37), at::Tensor()}) {
      EXPECT_TRUE(is_rounded(swiglu_forward(in, weights), swiglu_forward(fp32(in), weights)));
      const SwigluGradient wide = swiglu_backward(fp32(in), weights, fp32(dact), RecomputeAct::kYes);
      SwigluGradient got{in.clone(), dact.clone(),
                         weights.defined() ? at::empty_like(weights) : at::Tensor()};
      swiglu_backward_out(got, got.dgate_up_C2F, weights, got.act_CF);  // in the place of its inputs
      EXPECT_TRUE(is_rounded(got.dgate_up_C2F, wide.dgate_up_C2F));
      EXPECT_TRUE(is_rounded(got.act_CF, wide.act_CF));
      if (weights.defined()) {
        EXPECT_TRUE(got.dweights_C.equal(wide.dweights_C));
      }
    }
  }
}

TEST_P(SixteenBit, RmsNormIsThatOfFp32Rounded) {
  for (const auto& [rows, width] : kShapes) {
    const at::Tensor x = low({rows, width}, 3, 0.617), weight = low({width}, 1, 0.3) + 1,
                     dout = low({rows, width}, 1, 0.411);
    const NormForward got = rms_norm_forward(x, weight, 1e-5),
                      wide = rms_norm_forward(fp32(x), fp32(weight), 1e-5);
    EXPECT_TRUE(is_rounded(got.out, wide.out));
    EXPECT_TRUE(got.rstd.equal(wide.rstd));
    const NormGradient grad = rms_norm_backward(x, weight, got.rstd, dout),
                       wide_grad = rms_norm_backward(fp32(x), fp32(weight), wide.rstd, fp32(dout));
    EXPECT_TRUE(is_rounded(grad.dx, wide_grad.dx));
    EXPECT_TRUE(is_rounded(grad.dweight_D, wide_grad.dweight_D));
  }
}

TEST_P(SixteenBit, RopeIsThatOfFp32Rounded) {
  for (const i64 dim : {2, 6, 32, 64}) {
    const at::Tensor x = low({2, 9, 3, dim}, 1, 0.77), apart = at::cat({x, x}, -1).slice(-1, 0, dim);
    const RopeTable table = rope_table(9, dim, 1e4, x.options());
    for (const RopeLayout layout : {RopeLayout::kHalves, RopeLayout::kPairs}) {
      const at::Tensor wide = rotate(fp32(x), table, layout, RopeDirection::kBackward);
      EXPECT_TRUE(is_rounded(rotate(x, table, layout, RopeDirection::kBackward), wide));
      EXPECT_TRUE(is_rounded(rotate(apart, table, layout, RopeDirection::kBackward), wide));
    }
  }
}

/// Result and gradients of attention with shared heads, as one list.
std::vector<at::Tensor> attention_of(std::vector<at::Tensor> in) {
  for (at::Tensor& x : in) x.requires_grad_();
  const at::Tensor out = causal_attention(in[0], in[1], in[2], {0.3});
  std::vector<at::Tensor> all =
      torch::autograd::grad({out}, in, {wave(out.sizes(), 1, 0.91, in[0].scalar_type())});
  all.push_back(out.detach());
  return all;
}

TEST_P(SixteenBit, AttentionIsNearThatOfFp64) {
  for (const i64 seq_len : {1, 49, 145}) {
    std::vector<at::Tensor> in = {low({2, seq_len, 4, 24}, 1, 0.37), low({2, seq_len, 2, 24}, 1, 0.73),
                                  low({2, seq_len, 2, 16}, 1, 0.59)};
    std::vector<at::Tensor> wide;
    for (const at::Tensor& x : in) wide.push_back(x.to(at::kDouble));
    const auto got = attention_of(in), expected = attention_of(wide);
    for (std::size_t i = 0; i < got.size(); ++i) {
      ASSERT_EQ(got[i].scalar_type(), GetParam());
      // The seed and, in the gradients, what forward gave are rounded, too.
      EXPECT_LE(deviation(got[i], expected[i], expected[2].abs().max().item<double>() * 0.1), 8 * rounding())
          << seq_len << " part " << i;
    }
  }
}

TEST_P(SixteenBit, SumsOfRowsAreThoseOfFp32Rounded) {
  for (const i64 rows : {0, 1, 4000}) {
    const at::Tensor index = at::arange(rows, at::kLong).remainder(7), values = low({rows, 101}, 0.1, 0.7);
    at::Tensor got = low({7, 101}, 1, 0.3), wide = fp32(got);
    add_rows_(got, index, values);
    add_rows_(wide, index, values);
    EXPECT_TRUE(is_rounded(got, wide)) << rows;
  }
}

TEST_P(SixteenBit, UpdateFollowsTheFusedKernelOnTheMaster) {
  const i64 count = 70001;
  for (const at::ScalarType of_grad : {GetParam(), at::kFloat}) {
    std::vector<at::Tensor> values = {low({1, count}, 1, 0.7), low({13}, 1, 0.9),
                                      at::empty({0, 3}, GetParam())};
    const std::vector<at::Tensor> grads = {wave({1, count}, 1, 0.31, of_grad), wave({13}, 1, 0.17, of_grad),
                                           at::empty({0, 3}, of_grad)};
    AdamwState state = make_adamw_state(values);
    std::vector<at::Tensor> wide = {fp32(values[0]), fp32(values[1])};
    AdamwState of_wide = make_adamw_state(wide);
    for (int step = 0; step < 3; ++step) {
      adamw_update(values, grads, state, {}, 0.01, 0.5);
      adamw_update(wide, {grads[0].to(at::kFloat, false, true), grads[1].to(at::kFloat, false, true)},
                   of_wide, {}, 0.01, 0.5);
    }
    for (std::size_t i = 0; i < wide.size(); ++i) {
      EXPECT_LE(deviation(state.master[i], wide[i]), 1e-6);
      EXPECT_LE(deviation(state.exp_avg[i], of_wide.exp_avg[i]), 1e-6);
      EXPECT_LE(deviation(state.exp_avg_sq[i], of_wide.exp_avg_sq[i]), 1e-6);
      EXPECT_TRUE(is_rounded(values[i], state.master[i]));
    }
  }
}

/// All ops, one after another.
std::vector<at::Tensor> run_all(at::ScalarType dtype) {
  const at::Tensor x = wave({301, 128}, 2, 0.37, dtype), weights = wave({301}, 1, 0.9);
  std::vector<at::Tensor> out = {swiglu_forward(x, weights)};
  const SwigluGradient act = swiglu_backward(x, weights, out[0], RecomputeAct::kYes);
  const at::Tensor scale = wave({128}, 1, 0.3, dtype);
  const NormForward norm = rms_norm_forward(x, scale, 1e-5);
  const NormGradient of_norm = rms_norm_backward(x, scale, norm.rstd, x);
  out.insert(out.end(), {act.dgate_up_C2F, act.dweights_C, norm.out, of_norm.dx, of_norm.dweight_D});
  const auto heads =
      attention_of({wave({2, 145, 4, 24}, 1, 0.37, dtype), wave({2, 145, 2, 24}, 1, 0.73, dtype),
                    wave({2, 145, 2, 16}, 1, 0.59, dtype)});
  out.insert(out.end(), heads.begin(), heads.end());
  out.push_back(at::zeros({7, 128}, dtype));
  add_rows_(out.back(), at::arange(301, at::kLong).remainder(7), x);
  std::vector<at::Tensor> values = {wave({300, 301}, 1, 0.7, dtype)};
  AdamwState state = make_adamw_state(values);
  adamw_update(values, {wave({300, 301}, 1, 0.2)}, state, {}, 0.1, 0.5);
  out.insert(out.end(), {values[0], state.master[0]});
  return out;
}

TEST_P(SixteenBit, ThreadsChangeNoBit) {
  const auto one = with_threads(1, [&] { return run_all(GetParam()); });
  for (const int threads : {2, 5}) {
    const auto many = with_threads(threads, [&] { return run_all(GetParam()); });
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_TRUE(one[i].equal(many[i])) << threads << " " << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Types, SixteenBit, ::testing::Values(at::kBFloat16, at::kHalf),
                         [](const auto& info) { return std::string(c10::toString(info.param)); });

}  // namespace
}  // namespace hetermoe::testing
