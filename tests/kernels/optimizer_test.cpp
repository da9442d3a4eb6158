#include "hetermoe/nn/optimizer.h"

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
