#include "hetermoe/nn/optimizer.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hetermoe/model/op_cost.h"
#include "tests/nn/compare.h"
#include "tests/nn/peak_of.h"
#include "tests/nn/wave.h"

namespace hetermoe::testing {
namespace {

/// AdamW as in the paper (Loshchilov and Hutter, arXiv 1711.05101), in fp64.
struct PlainAdamw {
  at::Tensor value, m, v;
  void step(const at::Tensor& grad, i64 t, double rate, double decay, const AdamwOptions& o) {
    m = o.beta1 * m + (1 - o.beta1) * grad;
    v = o.beta2 * v + (1 - o.beta2) * grad * grad;
    const at::Tensor mean = m / (1 - std::pow(o.beta1, t)), var = v / (1 - std::pow(o.beta2, t));
    value = value - rate * decay * value - rate * mean / (var.sqrt() + o.eps);
  }
};

TEST(Optimizer, EqualsAdamwWithoutDecayOnNorms) {
  for (const auto& [dtype, tolerance] : {std::pair(at::kDouble, 1e-12), std::pair(at::kFloat, 1e-5)}) {
    std::vector<at::Tensor> values = {wave({5, 4, 3}, 0.7).to(dtype), wave({6}, 0.9).to(dtype),
                                      at::empty({0, 2}, dtype)};
    AdamwState state = make_adamw_state(values);
    const AdamwOptions options;
    std::vector<PlainAdamw> plain;
    for (int i = 0; i < 2; ++i) {
      const at::Tensor value = values[static_cast<std::size_t>(i)].to(at::kDouble).clone();
      plain.push_back({value, at::zeros_like(value), at::zeros_like(value)});
    }
    for (i64 t = 1; t <= 4; ++t) {
      const double rate = 0.01 * static_cast<double>(t), factor = t == 2 ? 0.3 : 1;
      const std::vector<at::Tensor> grads = {wave({5, 4, 3}, 0.1 * static_cast<double>(t)).to(dtype),
                                             wave({6}, 0.2 * static_cast<double>(t)).to(dtype), values[2]};
      plain[0].step(grads[0].to(at::kDouble) * factor, t, rate, 0.1, options);
      plain[1].step(grads[1].to(at::kDouble) * factor, t, rate, 0, options);
      adamw_update(values, grads, state, options, rate, factor);
    }
    EXPECT_EQ(state.step, 4);
    for (std::size_t i = 0; i < 2; ++i) EXPECT_LE(deviation(values[i], plain[i].value), tolerance);
  }
}

TEST(Optimizer, Bf16ValuesFollowAnFp32Master) {
  // Steps far below bf16's resolution at 1 still add up.
  std::vector<at::Tensor> values = {at::ones({2, 2}, at::kBFloat16)};
  AdamwState state = make_adamw_state(values);
  AdamwOptions options;
  options.weight_decay = 0;
  for (int t = 0; t < 100; ++t)
    adamw_update(values, {at::ones({2, 2}, at::kBFloat16)}, state, options, 1e-3, 1);
  EXPECT_NEAR(values[0][0][0].item<double>(), 0.9, 0.004);
}

constexpr i64 kMany = (17 << 20) + 5120;  // needs more than one block of kUpdateBlockBytes in fp32

/// Gradients of a large matrix and a vector, whose numbers need all digits of their dtype.
std::vector<at::Tensor> large_grads(at::ScalarType dtype) {
  const at::Tensor numbers = at::arange(kMany, at::kFloat).mul_(0.37).sin_().to(dtype);
  return {numbers.view({-1, 1 << 10}), numbers.narrow(0, 3, 1001).clone()};
}

TEST(Optimizer, WorkOfNormAndUpdateIsBoundedAndAsPredicted) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat}) {
    const std::vector<at::Tensor> grads = large_grads(dtype);
    const auto element = static_cast<Bytes>(grads[0].element_size());
    const Bytes norm = peak_of([&] { squared_norm(grads); });
    EXPECT_LE(norm, norm_work_bytes(kMany + 1001, element) + 4096) << dtype;
    std::vector<at::Tensor> values = {grads[0].clone(), grads[1].clone()};
    AdamwState state = make_adamw_state(values);
    const Bytes update = peak_of([&] { adamw_update(values, grads, state, {}, 0.1, 0.5); });
    EXPECT_LE(update, update_work_bytes(kMany + 1001, element) + 4096) << dtype;
    EXPECT_LE(std::max(norm, update), kUpdateBlockBytes + 4096) << dtype;
  }
}

/// One call of the kernel for everything, on gradients that are converted whole.
void plain_update(std::vector<at::Tensor> values, const std::vector<at::Tensor>& grads, AdamwState& moments,
                  double factor) {
  const AdamwOptions o;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const bool fp64 = values[i].scalar_type() == at::kDouble;
    at::Tensor grad = grads[i].to(values[i].scalar_type(), false, /*copy=*/true);
    if (fp64) grad *= factor;
    std::optional<at::Tensor> scale;
    if (!fp64) scale = at::full({}, 1 / factor);
    at::_fused_adamw_({values[i]}, {grad}, {moments.exp_avg[i]}, {moments.exp_avg_sq[i]}, {}, {at::ones({})},
                      0.1, o.beta1, o.beta2, values[i].dim() > 1 ? o.weight_decay : 0, o.eps, false, false,
                      scale);
  }
}

TEST(Optimizer, BlocksChangeNoBit) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kDouble}) {
    // Gradients of 16 bits to fp32 values: those of 16 bits have a pass of their own on a CPU.
    const std::vector<at::Tensor> grads = large_grads(dtype);
    const at::ScalarType of_values = dtype == at::kDouble ? at::kDouble : at::kFloat;
    std::vector<at::Tensor> values = {(grads[0] * 2).to(of_values), grads[1].cos().to(of_values)};
    AdamwState got = make_adamw_state(values), expected = make_adamw_state(values);
    const std::vector<at::Tensor> plain = {values[0].clone(), values[1].clone()};
    plain_update(plain, grads, expected, 0.3);
    adamw_update(values, grads, got, {}, 0.1, 0.3);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_TRUE(values[i].equal(plain[i])) << dtype;
      EXPECT_TRUE(got.exp_avg[i].equal(expected.exp_avg[i])) << dtype;
      EXPECT_TRUE(got.exp_avg_sq[i].equal(expected.exp_avg_sq[i])) << dtype;
    }
  }
}

TEST(Optimizer, NormOfEveryDtypeIsExactInFp64) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kHalf, at::kFloat, at::kDouble}) {
    const at::Tensor x = wave({300, 700}, 0.37).to(dtype);  // more than three blocks
    const double expected = x.to(at::kDouble).square().sum().item<double>();
    EXPECT_NEAR(squared_norm({x}).item<double>(), expected, 1e-13 * expected) << dtype;
  }
}

TEST(Optimizer, NormAndClip) {
  const at::Tensor norm = squared_norm({at::full({3}, 2.f), at::full({2, 2}, 1.f), at::empty({0})});
  EXPECT_EQ(norm.scalar_type(), at::kDouble);
  EXPECT_EQ(norm.item<double>(), 16);
  EXPECT_EQ(squared_norm({at::full({3}, 1e30f)}).item<double>() > 1e59, true);  // not infinite in fp64
  EXPECT_TRUE(std::isnan(squared_norm({at::full({3}, NAN)}).item<double>()));
  EXPECT_EQ(clip_factor(16, 1), 0.25);
  EXPECT_EQ(clip_factor(16, 5), 1);
  EXPECT_EQ(clip_factor(16, 0), 1);
}

}  // namespace
}  // namespace hetermoe::testing
