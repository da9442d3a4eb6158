#include "hetermoe/nn/router_jitter.h"

#include <torch/csrc/autograd/autograd.h>

#include "hetermoe/nn/products.h"
#include "tests/kernels/cases.h"
#include "tests/nn/peak_of.h"

namespace hetermoe::testing {
namespace {

const RouterTraining kJitterTraining{.jitter = 0.3, .seed = 5, .step = 7, .first_sequence = 11};

TEST(JitteredLinear, EqualsTheProductOfJitteredInputWithGradients) {
  const RouterJitter jitter = router_jitter(kJitterTraining, 0, 0, 0, 4);
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat, at::kBFloat16}) {
    const at::ScalarType wide = wide_of(dtype);
    const at::Tensor factors = jittered(at::ones({12, 24}, wide), jitter, wide);
    const at::Tensor x = values({12, 24}, dtype, 1).requires_grad_(),
                     weight = values({6, 24}, dtype, 2).requires_grad_(), dout = values({12, 6}, wide, 3);
    const at::Tensor expected = apply_wide_linear(x.to(wide) * factors, weight, wide),
                     got = apply_jittered_linear(x, weight, wide, jitter);
    EXPECT_TRUE(got.equal(expected)) << dtype;
    const auto grads = torch::autograd::grad({got}, {x, weight}, {dout}),
               expected_grads = torch::autograd::grad({expected}, {x, weight}, {dout});
    EXPECT_TRUE(grads[0].equal(expected_grads[0])) << dtype;
    EXPECT_LE(deviation(grads[1], expected_grads[1]), one_rounding(dtype)) << dtype;
  }
}

/// 36 bytes at once for each element came before, 0.6 GB for a sequence of 8,192 tokens of 2,048.
TEST(JitteredLinear, FactorsOfLongSequencesNeedMemoryForABlockAlone) {
  const i64 tokens = 4096, width = 512;
  const at::Tensor x = at::ones({tokens, width}, at::kFloat);
  const RouterJitter jitter = router_jitter(kJitterTraining, 0, 0, 0, tokens);
  const Bytes peak = peak_of([&] { jittered(x, jitter, at::kFloat); });
  const double result = 4.0 * tokens * width, block = 1 << 18;
  EXPECT_GE(peak, result);
  EXPECT_LT(peak, result + 44 * block) << peak;
}

}  // namespace
}  // namespace hetermoe::testing
