#include "hetermoe/nn/router_jitter.h"

#include <torch/csrc/autograd/autograd.h>

#include "hetermoe/nn/attention_part.h"
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

/// Bytes that are alive after a forward with a graph, beside what was there before.
Bytes kept_by_graph(at::ScalarType dtype, KeepGraph kind, double jitter) {
  const ModelConfig model = load_model("tiny-qwen3");
  const i64 layer = 0, seq_len = 24;
  EXPECT_TRUE(model.is_moe(layer));
  StateGroup state = make_attention_state(model, layer, dtype);
  init_parameters(state.views(), 3);
  const at::Tensor y = values({2 * seq_len, model.hidden}, dtype, 1);
  RouterTraining training = kJitterTraining;
  training.jitter = jitter;
  RouterTask task;
  task.jitter = router_jitter(training, layer, 0, 0, seq_len);
  const int num_threads = at::get_num_threads();
  at::set_num_threads(1);
  Bytes kept = 0;
  {
    MemoryMeter meter;
    const MemoryMeter::Watch watch(meter, 0);
    const AttentionOutput out = attention_forward(model, layer, state, y, seq_len, kind, task);
    kept = meter.alive();
  }
  at::set_num_threads(num_threads);
  return kept;
}

/// fp32 factors of every element were kept before, and the input in fp32.
TEST(RouterJitter, GraphsKeepNoMoreThanWithoutIt) {
  for (const at::ScalarType dtype : {at::kBFloat16, at::kFloat}) {
    for (const KeepGraph kind : {KeepGraph::kYes, KeepGraph::kSelected}) {
      const Bytes without = kept_by_graph(dtype, kind, 0);
      EXPECT_GT(without, 0);
      EXPECT_EQ(kept_by_graph(dtype, kind, 0.1), without) << dtype << " " << static_cast<int>(kind);
    }
  }
}

}  // namespace
}  // namespace hetermoe::testing
