#include "hetermoe/nn/embed_head.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "tests/kernels/cases.h"
#include "tests/nn/tiny_models.h"

namespace hetermoe::testing {
namespace {

/// Targets of which every third counts for nothing.
at::Tensor make_targets(i64 rows, i64 width) {
  at::Tensor out = (at::arange(rows, at::kLong) * 5).remainder(width);
  for (i64 r = 1; r < rows; r += 3) out[r] = kIgnoreTarget;
  return out;
}

struct Exact {
  at::Tensor losses, gradient;
};

Exact exact(const at::Tensor& logits, const at::Tensor& targets, double scale) {
  const at::Tensor logs = logits.to(at::kDouble).log_softmax(-1), counted = targets.ne(kIgnoreTarget);
  const at::Tensor index = targets.clamp_min(0).unsqueeze(1);
  const at::Tensor gradient = logs.exp().scatter_add(1, index, at::full(index.sizes(), -1.0, at::kDouble));
  return {-logs.gather(1, index).squeeze(1) * counted, gradient * counted.unsqueeze(1) * scale};
}

TEST(CrossEntropyKernel, EqualsTheFormulaForAllDtypesAndWidths) {
  with_blocks_of({1, 3}, [] {
    for (const at::ScalarType dtype : kAllDtypes) {
      for (const auto& [rows, width] : kRowsAndWidths) {
        SCOPED_TRACE(std::to_string(rows) + " x " + std::to_string(width) + " " + c10::toString(dtype));
        const at::Tensor logits = values({rows, width}, dtype, 1, 4), targets = make_targets(rows, width);
        const Exact expected = exact(logits, targets, 0.25);
        const at::Tensor gradient = logits.clone(), untouched = logits.clone();
        const double tolerance = dtype == at::kDouble ? 1e-12 : 1e-5;
        EXPECT_LE(deviation(gpu_cross_entropy(gradient, targets, 0.25), expected.losses, 1), tolerance);
        EXPECT_LE(deviation(gradient, expected.gradient, 1e-3),
                  one_rounding(dtype) + (dtype == at::kDouble ? 0 : 2e-6));
        EXPECT_LE(deviation(gpu_cross_entropy(untouched, targets, 0), expected.losses, 1), tolerance);
        EXPECT_TRUE(untouched.equal(logits));
      }
    }
  });
}

TEST(CrossEntropyKernel, SurvivesLargeLogitsAndPassesNansOn) {
  with_blocks_of({1, 4}, [] {
    const at::Tensor logits = at::tensor({-1e30f, 80.f, 1e4f, 1e4f, -INFINITY}).view({1, 5});
    const at::Tensor target = at::tensor({i64{2}});
    const at::Tensor gradient = logits.clone();
    EXPECT_NEAR(gpu_cross_entropy(gradient, target, 1).item<double>(), std::log(2.0), 1e-6);
    EXPECT_TRUE(at::allclose(gradient, at::tensor({0.f, 0.f, -0.5f, 0.5f, 0.f}).view({1, 5}), 1e-5, 1e-6))
        << gradient;
    at::Tensor bad = at::zeros({1, 40}, at::kHalf);
    bad[0][13] = NAN;
    EXPECT_TRUE(std::isnan(gpu_cross_entropy(bad, target, 1).item<double>()));
    EXPECT_TRUE(bad.isnan().all().item<bool>());
  });
}

TEST(HeadOnKernels, EqualsTheHeadOnTheCpu) {
  const ModelConfig model = tiny_mixtral();
  for (const at::ScalarType dtype : {at::kDouble, at::kFloat}) {
    const auto run = [&](StateGroup& state) {
      init_parameters(state.views(), 3);
      state.zero_grads();
      const at::Tensor y = values({20, model.hidden}, dtype, 1), targets = make_targets(20, model.vocab);
      const double evaluated = head_loss_sum(model, state, y, targets).item<double>();
      HeadResult result =
          head_forward_backward(model, state, y, targets, 14, {.chunk_tokens = 7, .loss_scale = 8});
      EXPECT_NEAR(evaluated / 14, result.loss.item<double>(), 1e-5);
      return result;
    };
    StateGroup cpu = make_head_state(model, dtype), own = make_head_state(model, dtype);
    const HeadResult expected = run(cpu);
    const HostKernels host(2);
    const HeadResult got = run(own);
    const double tolerance = dtype == at::kDouble ? 1e-12 : 2e-5;
    EXPECT_NEAR(got.loss.item<double>(), expected.loss.item<double>(), tolerance);
    EXPECT_LE(deviation(got.dy_TD, expected.dy_TD), tolerance);
    for (std::size_t i = 0; i < cpu.grads.size(); ++i)
      EXPECT_LE(deviation(own.grads[i], cpu.grads[i]), tolerance);
  }
}

TEST(EmbeddingOnKernels, GradientEqualsTheCpusToTheBit) {
  const ModelConfig model = tiny_mixtral();
  const at::Tensor tokens = (at::arange(50, at::kLong) * 13).remainder(9),
                   dy = values({50, model.hidden}, at::kFloat, 1);
  StateGroup cpu = make_embed_state(model, at::kFloat), own = make_embed_state(model, at::kFloat);
  embed_backward(cpu, tokens, dy);
  const HostKernels host(3);
  embed_backward(own, tokens, dy);
  EXPECT_TRUE(own.grad(Weight::kEmbedding).equal(cpu.grad(Weight::kEmbedding)));
}

}  // namespace
}  // namespace hetermoe::testing
