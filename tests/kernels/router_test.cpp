#include "hetermoe/nn/router.h"

#include <torch/csrc/autograd/autograd.h>

#include "tests/kernels/cases.h"
#include "tests/nn/tiny_models.h"

namespace hetermoe::testing {
namespace {

struct RouterOutcome {
  at::Tensor topk, weights, scores, dlogits;
};

at::Tensor bias_of(const ModelConfig& model, at::ScalarType dtype) {
  return model.router_bias ? values({model.num_experts}, dtype, 9, 0.1) : at::Tensor();
}

/// By libtorch and autograd.
RouterOutcome generic(const ModelConfig& model, const at::Tensor& given, const at::Tensor& dscores,
                      const at::Tensor& dweights) {
  const at::Tensor logits = given.detach().clone().requires_grad_();
  RouterOutcome out;
  out.scores = router_scores(model, logits);
  out.topk = choose_experts(model, out.scores, bias_of(model, given.scalar_type()));
  out.weights = routing_weights(model, out.scores, out.topk);
  out.dlogits = torch::autograd::grad({out.scores, out.weights}, {logits}, {dscores, dweights})[0];
  return out;
}

std::vector<ModelConfig> routers() {
  std::vector<ModelConfig> out = tiny_models();
  for (const i64 experts : {64, 257}) {  // no multiple of a warp
    ModelConfig wide = tiny_mixtral();
    wide.num_experts = experts, wide.top_k = 8;
    out.push_back(wide);
  }
  ModelConfig all = tiny_deepseek_v3();
  all.num_experts = 32, all.top_k = 8, all.num_expert_groups = 4, all.top_k_groups = 3;
  out.push_back(all);
  return out;
}

at::Tensor counts_of(const at::Tensor& topk, i64 seq_len, i64 experts) {
  const at::Tensor by_sequence = topk.reshape({-1, seq_len * topk.size(1)});
  return at::zeros({by_sequence.size(0), experts}, at::kLong)
      .scatter_add(1, by_sequence, at::ones_like(by_sequence));
}

TEST(RouterKernels, EqualLibtorchsRouterInAllFamilies) {
  with_blocks_of({1, 3}, [] {
    for (const ModelConfig& model : routers()) {
      for (const at::ScalarType dtype : {at::kFloat, at::kDouble}) {
        SCOPED_TRACE(model.name + " " + c10::toString(dtype));
        const i64 seq_len = 7, tokens = 3 * seq_len;
        const at::Tensor given = values({tokens, model.num_experts}, dtype, 1);
        const at::Tensor dscores = values(given.sizes(), dtype, 2),
                         dweights = values({tokens, model.top_k}, dtype, 3);
        const RouterOutcome expected = generic(model, given, dscores, dweights);
        const at::Tensor logits = given.clone().requires_grad_();
        const Routed got = gpu_route(model, logits, bias_of(model, dtype), seq_len, {});
        const double tolerance = dtype == at::kDouble ? 1e-13 : 2e-6;
        EXPECT_TRUE(got.topk_TK.equal(expected.topk));
        EXPECT_TRUE(got.counts_BE.equal(counts_of(expected.topk, seq_len, model.num_experts)));
        EXPECT_LE(deviation(got.scores_TE, expected.scores), tolerance);
        EXPECT_LE(deviation(got.weights_TK, expected.weights), tolerance);
        const auto grad =
            torch::autograd::grad({got.scores_TE, got.weights_TK}, {logits}, {dscores, dweights});
        EXPECT_LE(deviation(grad[0], expected.dlogits), 4 * tolerance);
      }
    }
  });
}

TEST(RouterKernels, RepeatAGivenChoice) {
  const HostKernels host;
  const ModelConfig model = tiny_olmoe();
  const at::Tensor logits = values({6, model.num_experts}, at::kDouble, 1);
  const at::Tensor choice = (at::arange(12, at::kLong) * 3).remainder(model.num_experts).view({6, 2});
  const Routed got = gpu_route(model, logits, {}, 3, choice);
  EXPECT_LE(deviation(got.weights_TK, routing_weights(model, router_scores(model, logits), choice)), 1e-14);
  EXPECT_TRUE(got.topk_TK.equal(choice));
  EXPECT_FALSE(got.counts_BE.defined());
}

TEST(RouterKernels, OneGradientMayBeMissing) {
  const HostKernels host;
  const ModelConfig model = tiny_qwen3();
  const at::Tensor logits = values({6, model.num_experts}, at::kDouble, 1).requires_grad_();
  const Routed got = gpu_route(model, logits, {}, 3, {});
  const at::Tensor expected = routing_weights(model, router_scores(model, logits), got.topk_TK);
  const at::Tensor seed = values({6, model.top_k}, at::kDouble, 2);
  EXPECT_LE(deviation(torch::autograd::grad({got.weights_TK}, {logits}, {seed})[0],
                      torch::autograd::grad({expected}, {logits}, {seed})[0]),
            1e-13);
}

TEST(RouterKernels, AmongEqualsTheLowerExpertIsChosenAndNansStayInRange) {
  const HostKernels host;
  ModelConfig model = tiny_mixtral();
  model.num_experts = 40, model.top_k = 3;
  const at::Tensor even = gpu_route(model, at::zeros({2, 40}), {}, 1, {}).topk_TK;
  EXPECT_TRUE(even.equal(at::tensor({0, 1, 2, 0, 1, 2}, at::kLong).view({2, 3})));
  const at::Tensor nans = gpu_route(model, at::full({2, 40}, NAN), {}, 1, {}).topk_TK;
  EXPECT_TRUE(nans.equal(even));
}

TEST(RouterKernels, NoTokens) {
  const HostKernels host;
  const ModelConfig model = tiny_mixtral();
  const Routed got = gpu_route(model, at::empty({0, model.num_experts}), {}, 5, {});
  EXPECT_EQ(got.topk_TK.size(0), 0);
  EXPECT_EQ(got.counts_BE.size(0), 0);
}

}  // namespace
}  // namespace hetermoe::testing
