#include "hetermoe/nn/reference.h"

#include <gtest/gtest.h>

#include "hetermoe/base/error.h"
#include "tests/nn/newer_models.h"
#include "tests/nn/task_chain.h"

namespace hetermoe::testing {
namespace {

struct Sample {
  TensorsByName params;
  at::Tensor tokens, targets;
};

Sample make_sample(const ModelConfig& model) {
  Sample out;
  const Parameters storage = make_parameters(model, {}, at::kDouble);
  fill_lively(all_views(model, storage));
  for (const NamedView& view : all_views(model, storage)) out.params[view.name] = view.value.clone();
  out.tokens = at::arange(10, at::kLong).mul(7).remainder(model.vocab).view({2, 5});
  out.targets = out.tokens.roll(1, 1);
  return out;
}

TEST(Reference, GradientsEqualFiniteDifferences) {
  // One entry of every tensor; a step so small that no top-k choice changes.
  std::vector<ModelConfig> models = models_of_all_families();
  for (ModelConfig& model : tiny_dense_models()) models.push_back(std::move(model));
  models.push_back(tiny_qwen2());
  for (const ModelConfig& model : models) {
    Sample s = make_sample(model);
    const ReferenceResult base = reference_step(model, s.params, s.tokens, s.targets, {1});
    for (const auto& [name, grad] : base.grads) {
      const i64 place = grad.abs().flatten().argmax().item<i64>();
      const double step = 1e-5;
      at::Tensor entry = s.params[name].view(-1)[place];
      const double value = entry.item<double>();
      entry.fill_(value + step);
      const double up = reference_step(model, s.params, s.tokens, s.targets, {1}).loss;
      entry.fill_(value - step);
      const double down = reference_step(model, s.params, s.tokens, s.targets, {1}).loss;
      entry.fill_(value);
      const double expected = grad.view(-1)[place].item<double>();
      // The balancing loss counts choices, which are constant: its gradient is that of the probabilities
      // alone.
      EXPECT_NEAR((up - down) / (2 * step), expected, 1e-6 * std::max(1.0, std::abs(expected)))
          << model.name << " " << name;
    }
  }
}

TEST(Reference, ZeroWeightsGiveTheUniformLossAndPerfectBalance) {
  ModelConfig model = tiny_mixtral();
  Sample s = make_sample(model);
  for (auto& [name, value] : s.params) value.zero_();
  const ReferenceResult result = reference_step(model, s.params, s.tokens, s.targets);
  EXPECT_NEAR(result.loss - result.aux_loss, std::log(37.0), 1e-12);
  // All probabilities are 1/4, so the loss is coef * 4 * sum(f) / 4 = coef * top_k whatever is chosen.
  EXPECT_NEAR(result.aux_loss, 0.02 * 2, 1e-12);
}

TEST(Reference, LogitsGiveTheLoss) {
  const ModelConfig model = tiny_deepseek_v3();
  const Sample s = make_sample(model);
  const ReferenceResult result = reference_step(model, s.params, s.tokens, s.targets);
  const at::Tensor logits = reference_logits(model, s.params, s.tokens);
  EXPECT_NEAR(at::cross_entropy_loss(logits.flatten(0, 1), s.targets.flatten()).item<double>(),
              result.loss - result.aux_loss, 1e-12);
}

TEST(Reference, MissingTensorIsNamed) {
  const ModelConfig model = tiny_mixtral();
  Sample s = make_sample(model);
  s.params.erase("model.layers.1.block_sparse_moe.experts.2.w3.weight");
  try {
    reference_logits(model, s.params, s.tokens);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_NE(std::string(error.what()).find("experts.2.w3.weight"), std::string::npos);
  }
}

}  // namespace
}  // namespace hetermoe::testing
