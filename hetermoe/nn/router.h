#pragma once
#include <ATen/ATen.h>

#include "hetermoe/model/model_config.h"

// Router arithmetic as in the Hugging Face classes of the five families. All in fp32 at least.
namespace hetermoe {

/// Differentiable scores [T, E] of logits [T, E]: softmax or sigmoid.
at::Tensor router_scores(const ModelConfig& model, const at::Tensor& logits_TE);

/// The chosen experts, int64 [T, K]. bias_E: e_score_correction_bias or undefined; it changes the choice
/// only. Experts of groups that are not kept are never chosen, as in transformers 5 and DeepSeek's own code.
/// (transformers 4 gave them 0, which beats a kept expert whose biased score is negative.)
at::Tensor choose_experts(const ModelConfig& model, const at::Tensor& scores_TE, const at::Tensor& bias_E);

/// Differentiable routing weights [T, K] of the chosen experts.
at::Tensor routing_weights(const ModelConfig& model, const at::Tensor& scores_TE, const at::Tensor& topk_TK);

/// All of the above in one pass.
struct Routed {
  at::Tensor scores_TE;   ///< differentiable
  at::Tensor topk_TK;     ///< int64
  at::Tensor weights_TK;  ///< differentiable
  at::Tensor counts_BE;   ///< int64 copies per expert in each sequence; undefined where the choice was given
};
/// Where kernels of our own run (runs_on_kernels(logits)). topk_TK: the choice of an earlier call, or
/// undefined to choose now. Among equal scores the lower expert is chosen.
Routed gpu_route(const ModelConfig& model, const at::Tensor& logits_TE, const at::Tensor& bias_E, i64 seq_len,
                 const at::Tensor& topk_TK);

/// Differentiable probabilities [T, E] of the load-balancing loss: the softmax; for sigmoid routers scores /
/// their sum.
at::Tensor router_probabilities(const ModelConfig& model, const at::Tensor& scores_TE);

/// Gradient [A, P, E] of the load-balancing loss by every token's router probabilities, for
/// attention_backward. counts_APE: copies per expert, summed over all devices and the MoE layers of a part,
/// for each group of the loss. A part is all MoE layers together (P = 1), or one of them. total_tokens:
/// tokens of the step (all groups), counted once and not per layer. The loss of a part is coef * E * sum_e
/// f_e P_e over its layers (no division by top-k). The loss is the mean over parts, and over groups weighted
/// by their tokens.
at::Tensor balance_gradient(const ModelConfig& model, const at::Tensor& counts_APE, i64 total_tokens,
                            at::ScalarType dtype);

}  // namespace hetermoe
