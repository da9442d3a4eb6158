#include "hetermoe/nn/stochastic_rounding.h"

#include <gtest/gtest.h>

#include <limits>

#include "hetermoe/nn/optimizer.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe::testing {
namespace {

at::Tensor rounded(const at::Tensor& wide, u64 key, i64 first = 0) {
  at::Tensor narrow = at::empty(wide.sizes(), at::kBFloat16);
  round_stochastically(wide, narrow, key, first);
  return narrow;
}

TEST(StochasticRounding, TheMeanIsTheNumber) {
  const double step = 1.0 / 128;  // of bf16 at 1
  for (const double x : {1 + 0.3 * step, -1 - 0.9 * step, 3.14159, 1e-20, 0.0}) {
    const at::Tensor wide = at::full({100'000}, x, at::kFloat);
    const at::Tensor result = rounded(wide, 7).to(at::kDouble);
    const double spacing = std::max(1e-30, std::abs(x) * step), mean = result.mean().item<double>();
    EXPECT_NEAR(mean, wide[0].item<double>(), 0.01 * spacing) << x;  // three standard deviations: 0.005
    EXPECT_LE((result - x).abs().max().item<double>(), spacing) << x;
  }
}

TEST(StochasticRounding, NumbersOfBf16AndThoseThatAreNoneStay) {
  const float inf = std::numeric_limits<float>::infinity();
  const at::Tensor wide = at::tensor({0.f, -0.f, 1.5f, -3.f, inf, -inf, std::nanf("")});
  const at::Tensor result = rounded(wide, 3).to(at::kFloat);
  EXPECT_TRUE(at::equal(result.narrow(0, 0, 6), wide.narrow(0, 0, 6)));
  EXPECT_TRUE(result[6].isnan().item<bool>());
}

TEST(StochasticRounding, ADrawFollowsFromKeyAndElement) {
  const at::Tensor wide = at::arange(1000, at::kFloat).mul_(0.37).sin_();
  const at::Tensor whole = rounded(wide, 11);
  EXPECT_TRUE(at::equal(rounded(wide.narrow(0, 400, 600), 11, 400), whole.narrow(0, 400, 600)));
  EXPECT_FALSE(at::equal(rounded(wide, 12), whole));
  at::Tensor by_tensors = at::empty({1000}, at::kBFloat16);
  round_by_tensors(wide, by_tensors, 11, 0);
  EXPECT_TRUE(at::equal(by_tensors, whole));
}

/// 4,096 values of 1 after 100 steps of 0.001 down, none of which bf16 could take at 1.
at::Tensor after_small_steps(const OptimizerWidths& kept) {
  std::vector<at::Tensor> values = {at::ones({64, 64}, at::kBFloat16)};
  AdamwState state = make_adamw_state(values, kept);
  AdamwOptions options;
  options.weight_decay = 0;
  for (int t = 0; t < 100; ++t)
    adamw_update(values, {at::ones({64, 64}, at::kFloat)}, state, options, 1e-3, 1);
  return values[0].to(at::kDouble);
}

TEST(OptimizerWidths, SmallStepsAddUpWithoutAMaster) {
  const OptimizerWidths no_master{.master = false};
  EXPECT_NEAR(after_small_steps(no_master).mean().item<double>(), 0.9, 0.002);
  EXPECT_NEAR(after_small_steps({.master = false, .moment = 2}).mean().item<double>(), 0.9, 0.002);
  EXPECT_NEAR(after_small_steps({.master = true, .moment = 2}).mean().item<double>(), 0.9, 0.002);
  EXPECT_TRUE(at::equal(after_small_steps(no_master), after_small_steps(no_master)));
}

TEST(OptimizerWidths, PartsOfAStorageRoundAsTheWhole) {
  const at::Tensor numbers = at::arange(1000, at::kFloat).mul_(0.37).sin_();
  const auto updated = [&](i64 begin, i64 end) {
    std::vector<at::Tensor> values = {numbers.narrow(0, begin, end - begin).to(at::kBFloat16)};
    AdamwState state = make_adamw_state(values, {.master = false, .moment = 2});
    state.first = {begin};
    for (int t = 0; t < 3; ++t)
      adamw_update(values, {numbers.narrow(0, begin, end - begin).cos()}, state, {}, 1e-2, 0.5);
    return values[0];
  };
  EXPECT_TRUE(at::equal(updated(0, 1000).narrow(0, 300, 400), updated(300, 700)));
}

TEST(OptimizerWidths, AnUpdateWithWideMomentsDiffersByTheRoundingAlone) {
  const at::Tensor start = at::arange(5000, at::kFloat).mul_(0.37).sin_().to(at::kBFloat16).view({50, 100});
  const at::Tensor grad = at::arange(5000, at::kFloat).mul_(0.11).cos_().view({50, 100});
  std::vector<at::Tensor> narrow = {start.clone()}, wide = {start.to(at::kFloat)};
  AdamwState of_narrow = make_adamw_state(narrow, {.master = false}), of_wide = make_adamw_state(wide);
  adamw_update(narrow, {grad.clone()}, of_narrow, {}, 1e-2, 0.5);
  adamw_update(wide, {grad.clone()}, of_wide, {}, 1e-2, 0.5);
  EXPECT_TRUE(at::equal(of_narrow.exp_avg[0], of_wide.exp_avg[0]));
  EXPECT_TRUE(at::equal(of_narrow.exp_avg_sq[0], of_wide.exp_avg_sq[0]));
  const at::Tensor off = (narrow[0].to(at::kFloat) - wide[0]).abs();
  EXPECT_TRUE((off <= wide[0].abs() / 128).all().item<bool>());
  EXPECT_GT(off.max().item<double>(), 0);
}

}  // namespace
}  // namespace hetermoe::testing
