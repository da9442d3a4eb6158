#include "hetermoe/nn/optimizer.h"

#include "hetermoe/base/splitmix64.h"
#include "hetermoe/nn/stochastic_rounding.h"
#include "tests/kernels/cases.h"

namespace hetermoe::testing {
namespace {

/// Sizes around packs and chunks of the kernel, none, and more tensors than one launch takes.
std::vector<at::Tensor> make_list(at::ScalarType dtype, u64 seed) {
  std::vector<at::Tensor> out;
  for (const i64 size : {1, 7, 8, 0, 1031, 16384, 16385, 40000})
    out.push_back(values({size}, dtype, seed + out.size()));
  out.push_back(values({37, 53}, dtype, seed + 50));  // a matrix: it decays
  while (out.size() < 70) out.push_back(values({3, 5}, dtype, seed + out.size()));
  return out;
}

struct Outcome {
  std::vector<at::Tensor> values;
  AdamwState state;
};

Outcome two_updates(at::ScalarType dtype, at::ScalarType grad_dtype, Path path) {
  Outcome out{make_list(dtype, 1), {}};
  out.state = make_adamw_state(out.values);
  for (const u64 seed : {100, 200})
    adamw_update(out.values, make_list(grad_dtype, seed), out.state, {}, 1e-2, 0.37, path);
  return out;
}

struct Dtypes {
  at::ScalarType value, grad;
};

TEST(AdamwKernel, EqualsLibtorchsUpdate) {
  with_blocks_of({1, 3}, [] {
    for (const auto& [value, grad] : {Dtypes{at::kFloat, at::kFloat}, Dtypes{at::kDouble, at::kDouble},
                                      Dtypes{at::kBFloat16, at::kBFloat16}, Dtypes{at::kBFloat16, at::kFloat},
                                      Dtypes{at::kHalf, at::kHalf}, Dtypes{at::kHalf, at::kFloat}}) {
      SCOPED_TRACE(std::string(c10::toString(value)) + " " + c10::toString(grad));
      const LaunchRecorder recorder;
      const Outcome own = two_updates(value, grad, Path::kAuto);
      EXPECT_EQ(recorder.counts(), (std::map<std::string, i64>{{"adamw", 4}}));  // two for the 70 tensors
      const Outcome generic = two_updates(value, grad, Path::kGeneric);
      const double tolerance = value == at::kDouble ? 1e-14 : 2e-6;
      for (std::size_t i = 0; i < own.values.size(); ++i) {
        EXPECT_LE(deviation(own.state.exp_avg[i], generic.state.exp_avg[i]), tolerance) << i;
        EXPECT_LE(deviation(own.state.exp_avg_sq[i], generic.state.exp_avg_sq[i]), tolerance) << i;
        EXPECT_LE(deviation(own.values[i], generic.values[i]), std::max(tolerance, one_rounding(value))) << i;
        if (own.state.master.empty()) continue;
        EXPECT_LE(deviation(own.state.master[i], generic.state.master[i]), tolerance) << i;
        EXPECT_TRUE(own.values[i].equal(own.state.master[i].to(value))) << i;
      }
    }
  });
}

TEST(AdamwKernel, ChangesNoBitWithTheBlocks) {
  std::vector<Outcome> outcomes;
  for (const i32 threads : {1, 4}) {
    const HostKernels host(threads);
    outcomes.push_back(two_updates(at::kBFloat16, at::kFloat, Path::kAuto));
  }
  for (std::size_t i = 0; i < outcomes[0].values.size(); ++i)
    EXPECT_TRUE(outcomes[0].state.master[i].equal(outcomes[1].state.master[i]));
}

/// Values, gradients and moments, and whether there is a master.
struct NarrowCase {
  at::ScalarType value, grad, moment;
  bool master;
  std::string name() const {
    return std::string(c10::toString(value)) + " " + c10::toString(grad) + " " + c10::toString(moment) +
           (master ? " with master" : "");
  }
};
const std::vector<NarrowCase> kNarrowCases = {
    {at::kBFloat16, at::kFloat, at::kFloat, false},    {at::kBFloat16, at::kBFloat16, at::kFloat, false},
    {at::kBFloat16, at::kFloat, at::kBFloat16, false}, {at::kBFloat16, at::kBFloat16, at::kBFloat16, false},
    {at::kBFloat16, at::kFloat, at::kBFloat16, true},  {at::kBFloat16, at::kBFloat16, at::kBFloat16, true},
    {at::kHalf, at::kFloat, at::kBFloat16, true},      {at::kHalf, at::kHalf, at::kBFloat16, true},
    {at::kFloat, at::kFloat, at::kBFloat16, false},
};

constexpr double kRate = 1e-2, kGradFactor = 0.37;

/// After one update from zero moments, so that a second begins with moments.
Outcome begin_narrow(const NarrowCase& c, Path path) {
  Outcome out{make_list(c.value, 1), {}};
  out.state =
      make_adamw_state(out.values, {.master = c.master, .moment = c.moment == at::kBFloat16 ? 2.0 : 4.0});
  out.state.rounding_key = 0x123456789abcdefull;
  for (std::size_t i = 0; i < out.values.size(); ++i) out.state.first.push_back(static_cast<i64>(1000 * i));
  adamw_update(out.values, make_list(c.grad, 100), out.state, {}, kRate, kGradFactor, path);
  return out;
}

/// x as the optimizer keeps it in `dtype`.
at::Tensor kept_as(const at::Tensor& x, at::ScalarType dtype, u64 key, i64 first) {
  if (dtype != at::kBFloat16) return x.to(dtype);
  at::Tensor out = at::empty(x.sizes(), dtype);
  round_stochastically(x, out, key, first);
  return out;
}

TEST(AdamwKernel, NarrowNumbersAreThoseOfTheWideUpdateRoundedByTheDrawsToTheBit) {
  with_blocks_of({1, 3}, [] {
    for (const NarrowCase& c : kNarrowCases) {
      SCOPED_TRACE(c.name());
      Outcome own = begin_narrow(c, Path::kAuto);
      std::vector<at::Tensor> wide;
      AdamwState of_wide;
      const auto widened = [](const at::Tensor& x) { return x.to(at::kFloat, false, /*copy=*/true); };
      for (std::size_t i = 0; i < own.values.size(); ++i) {
        wide.push_back(widened(c.master ? own.state.master[i] : own.values[i]));
        of_wide.exp_avg.push_back(widened(own.state.exp_avg[i]));
        of_wide.exp_avg_sq.push_back(widened(own.state.exp_avg_sq[i]));
      }
      of_wide.step = own.state.step;
      const LaunchRecorder recorder;
      adamw_update(own.values, make_list(c.grad, 200), own.state, {}, kRate, kGradFactor);
      EXPECT_EQ(recorder.counts(), (std::map<std::string, i64>{{"adamw", 2}}));
      std::vector<at::Tensor> grads;
      for (const at::Tensor& grad : make_list(c.grad, 200)) grads.push_back(grad.to(at::kFloat));
      adamw_update(wide, grads, of_wide, {}, kRate, kGradFactor);
      for (std::size_t i = 0; i < wide.size(); ++i) {
        const auto [key, first] = draws_of(own.state, i);
        const at::Tensor value = c.master ? wide[i].to(c.value) : kept_as(wide[i], c.value, key, first);
        EXPECT_TRUE(own.values[i].equal(value)) << i;
        EXPECT_TRUE(
            own.state.exp_avg[i].equal(kept_as(of_wide.exp_avg[i], c.moment, splitmix64(key + 1), first)))
            << i;
        EXPECT_TRUE(own.state.exp_avg_sq[i].equal(
            kept_as(of_wide.exp_avg_sq[i], c.moment, splitmix64(key + 2), first)))
            << i;
      }
    }
  });
}

/// One update in fp64 by the formula.
struct ExactUpdate {
  at::Tensor value, exp_avg, exp_avg_sq;
};
ExactUpdate exact_update(const at::Tensor& value, const at::Tensor& grad) {
  const AdamwOptions options;
  const at::Tensor g = grad.to(at::kDouble) * kGradFactor, v = value.to(at::kDouble);
  ExactUpdate out{{}, g * (1 - options.beta1), g * g * (1 - options.beta2)};
  const double decay = value.dim() > 1 ? 1 - kRate * options.weight_decay : 1;
  out.value = v * decay - kRate * (out.exp_avg / (1 - options.beta1)) /
                              ((out.exp_avg_sq / (1 - options.beta2)).sqrt() + options.eps);
  return out;
}

/// How many numbers are further from the exact ones than the neighbours in their dtype, plus fp32's rounding.
i64 num_beyond_neighbours(const at::Tensor& got, const at::Tensor& exact) {
  const double step = got.scalar_type() == at::kFloat ? 1e-6 : got.scalar_type() == at::kHalf ? 1e-3 : 0x1p-7;
  const at::Tensor most = exact.abs() * (1.001 * step) + 1e-6 * exact.abs().max();
  return (got.to(at::kDouble) - exact).abs().gt(most).sum().item<i64>();
}

TEST(AdamwKernel, NarrowNumbersAreNeighboursOfTheFormulaInFp64) {
  const HostKernels host(3);
  for (const NarrowCase& c : kNarrowCases) {
    SCOPED_TRACE(c.name());
    const std::vector<at::Tensor> before = make_list(c.value, 1), grads = make_list(c.grad, 100);
    const Outcome own = begin_narrow(c, Path::kAuto);
    for (std::size_t i = 0; i < before.size(); ++i) {
      if (before[i].numel() == 0) continue;
      const ExactUpdate expected = exact_update(before[i], grads[i]);
      EXPECT_EQ(num_beyond_neighbours(own.values[i], expected.value), 0) << i;
      EXPECT_EQ(num_beyond_neighbours(own.state.exp_avg[i], expected.exp_avg), 0) << i;
      EXPECT_EQ(num_beyond_neighbours(own.state.exp_avg_sq[i], expected.exp_avg_sq), 0) << i;
    }
  }
}

/// The draws are the same. What is rounded differs by fp32's last bits, which change few numbers.
TEST(AdamwKernel, NarrowNumbersAreThoseOfTheGenericPathButForAFew) {
  const HostKernels host;
  for (const NarrowCase& c : kNarrowCases) {
    if (c.value == at::kFloat) continue;  // fp32 values differ by their last bits everywhere
    const Outcome own = begin_narrow(c, Path::kAuto), generic = begin_narrow(c, Path::kGeneric);
    i64 all = 0, differ = 0;
    for (std::size_t i = 0; i < own.values.size(); ++i) {
      all += own.values[i].numel();
      differ += own.values[i].ne(generic.values[i]).sum().item<i64>();
      if (c.moment == at::kBFloat16)
        differ += own.state.exp_avg[i].ne(generic.state.exp_avg[i]).sum().item<i64>();
    }
    EXPECT_LT(differ, all / 500) << c.name() << ": " << differ << " of " << all;
  }
}

TEST(AdamwKernel, InfiniteGradientsStayInfiniteInNarrowMoments) {
  const HostKernels host;
  std::vector<at::Tensor> values = {at::ones({9}, at::kBFloat16)};
  AdamwState state = make_adamw_state(values, {.master = false, .moment = 2});
  at::Tensor grad = at::ones({9}, at::kFloat);
  grad[2] = INFINITY, grad[4] = NAN;
  adamw_update(values, {grad}, state, {}, kRate, 1);
  EXPECT_TRUE(state.exp_avg_sq[0][2].isinf().item<bool>());
  EXPECT_TRUE(values[0][4].isnan().item<bool>() && state.exp_avg[0][4].isnan().item<bool>());
  EXPECT_EQ(values[0].isfinite().sum().item<i64>(), 7);
}

TEST(ClearKernel, MakesZerosOfWhatItIsGivenAlone) {
  const kernels::HostKernels on;
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> whole, parts;
    for (const i64 size : {1, 3, 7, 1000, 131072, 300001}) {
      whole.push_back(at::ones({size + 2}, dtype));
      parts.push_back(whole.back().narrow(0, 1, size));
    }
    for (i64 i = 0; i < 200; ++i) parts.push_back(at::ones({i % 3}, dtype));
    clear(parts);
    for (const at::Tensor& part : parts) EXPECT_EQ(part.count_nonzero().item<i64>(), 0) << dtype;
    for (const at::Tensor& tensor : whole) EXPECT_EQ(tensor.sum().item<double>(), 2) << dtype;
  }
}

TEST(NormKernel, EqualsTheSumInFp64) {
  with_blocks_of({1, 3}, [] {
    for (const at::ScalarType dtype : kAllDtypes) {
      std::vector<at::Tensor> grads = make_list(dtype, 5);
      grads.push_back(values({200001}, dtype, 6));
      for (u64 i = 0; i < 70; ++i) grads.push_back(values({5}, dtype, 300 + i));  // two launches
      double expected = 0;
      for (const at::Tensor& grad : grads) expected += grad.to(at::kDouble).square().sum().item<double>();
      EXPECT_NEAR(squared_norm(grads).item<double>() / expected, 1, 1e-12) << dtype;
    }
  });
}

TEST(NormKernel, RepeatsToTheBitAndShowsOverflow) {
  const HostKernels host(3);
  std::vector<at::Tensor> grads = make_list(at::kHalf, 5);
  EXPECT_EQ(squared_norm(grads).item<double>(), squared_norm(grads).item<double>());
  grads[5][77] = INFINITY;
  EXPECT_TRUE(std::isinf(squared_norm(grads).item<double>()));
  grads[6][16384] = NAN;
  EXPECT_TRUE(std::isnan(squared_norm(grads).item<double>()));
  EXPECT_EQ(squared_norm({at::full({9}, 1e30, at::kFloat)}).item<double>(),
            9 * static_cast<double>(1e30f) * static_cast<double>(1e30f));  // beyond fp32
}

TEST(NormKernel, IsTwoLaunchesForAListAndZeroForNothing) {
  const HostKernels host;
  const LaunchRecorder recorder;
  EXPECT_EQ(squared_norm({at::empty({0}, at::kFloat)}).item<double>(), 0);
  squared_norm({at::ones({5}, at::kFloat), at::ones({5}, at::kFloat)});
  EXPECT_EQ(recorder.counts(), (std::map<std::string, i64>{{"square_sum", 1}, {"sum_up", 2}}));
}

}  // namespace
}  // namespace hetermoe::testing
