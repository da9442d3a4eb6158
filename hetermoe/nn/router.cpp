#include "hetermoe/nn/router.h"

#include <cmath>

namespace hetermoe {
namespace {

/// 1 for the experts of the kept groups, 0 for the others: [T, E] bool.
at::Tensor kept_experts(const ModelConfig& model, const at::Tensor& choice_TE) {
  const i64 num_tokens = choice_TE.size(0), group_size = model.num_experts / model.num_expert_groups;
  const at::Tensor grouped = choice_TE.view({num_tokens, model.num_expert_groups, group_size});
  const at::Tensor group_scores = model.group_score == GroupScore::kMax
                                      ? grouped.amax(-1)
                                      : std::get<0>(grouped.topk(std::min<i64>(2, group_size), -1)).sum(-1);
  const at::Tensor kept = std::get<1>(group_scores.topk(model.top_k_groups, -1));
  const at::Tensor mask =
      at::zeros_like(group_scores, group_scores.options().dtype(at::kBool)).scatter(1, kept, true);
  return mask.unsqueeze(-1).expand({num_tokens, model.num_expert_groups, group_size}).reshape_as(choice_TE);
}

}  // namespace

at::Tensor router_scores(const ModelConfig& model, const at::Tensor& logits_TE) {
  return model.router_score == RouterScore::kSigmoid ? logits_TE.sigmoid() : logits_TE.softmax(-1);
}

at::Tensor choose_experts(const ModelConfig& model, const at::Tensor& scores_TE, const at::Tensor& bias_E) {
  at::Tensor choice = scores_TE.detach();
  if (bias_E.defined()) choice = choice + bias_E;
  if (model.has_expert_groups()) {
    choice = choice.masked_fill(kept_experts(model, choice).logical_not(), -INFINITY);
  }
  return std::get<1>(choice.topk(model.top_k, -1));
}

at::Tensor routing_weights(const ModelConfig& model, const at::Tensor& scores_TE, const at::Tensor& topk_TK) {
  at::Tensor weights = scores_TE.gather(1, topk_TK);
  if (model.normalize_top_k) {
    // The constant is part of DeepSeek-V3's class: sigmoids may all underflow, a softmax cannot. ERNIE's
    // chosen experts may be those of its bias, and have next to nothing of the softmax.
    const double floor = model.router_score == RouterScore::kSigmoid ? 1e-20 : 0;
    weights = weights / (weights.sum(-1, true) + floor).clamp_min(model.least_weight_sum);
  }
  return model.routed_scale == 1 ? weights : weights * model.routed_scale;
}

at::Tensor router_probabilities(const ModelConfig& model, const at::Tensor& scores_TE) {
  return model.router_score == RouterScore::kSigmoid ? scores_TE / scores_TE.sum(-1, true) : scores_TE;
}

at::Tensor balance_gradient(const ModelConfig& model, const at::Tensor& counts_APE, i64 total_tokens,
                            at::ScalarType dtype) {
  // Every token makes top_k choices in each layer of a part: the copies of L layers are L * tokens * top_k. A
  // group's share of the step's tokens, and a part's share of the layers, cancel the tokens that P averages
  // over.
  const at::Tensor counts = counts_APE.to(at::kDouble);
  const at::Tensor layer_tokens = counts.sum(-1, true) / static_cast<double>(model.top_k);
  const at::Tensor fraction = counts / layer_tokens.clamp_min(1);
  const double scale = model.aux_loss_coef * static_cast<double>(model.num_experts) /
                       static_cast<double>(model.num_moe_layers() * total_tokens);
  return (fraction * scale).to(dtype);
}

}  // namespace hetermoe
