#pragma once
#include <ATen/ATen.h>

#include "hetermoe/nn/params.h"
#include "hetermoe/nn/token_loss.h"

namespace hetermoe {

/// tokens_T: int64. Returns y_TD.
at::Tensor embed_forward(const StateGroup& state, const at::Tensor& tokens_T);
/// Adds into the embedding's gradient.
void embed_backward(StateGroup& state, const at::Tensor& tokens_T, const at::Tensor& dy_TD);

struct HeadOptions {
  i64 chunk_tokens = 0;   ///< logits exist for this many tokens at a time; 0 = what suits the device
  double loss_scale = 1;  ///< factor on the gradients, not on the loss
  MakeTokenLoss make_loss = make_cross_entropy;
};

struct HeadResult {
  at::Tensor loss;   ///< 0-dim, fp64: this part's share of the step's mean loss
  at::Tensor dy_TD;  ///< its gradient
};

/// Final norm, logits, loss and its gradient in one task. loss = sum over targets / target_count,
/// where target_count is the number of counted targets in the whole step (not only here). Adds into state's
/// gradients, unless they are frozen. With tied embeddings `state` is the embedding's group.
HeadResult head_forward_backward(const ModelConfig& model, StateGroup& state, const at::Tensor& y_TD,
                                 const at::Tensor& targets_T, i64 target_count,
                                 const HeadOptions& options = {});

/// Sum of the loss over the counted targets (fp64, 0-dim), without gradients: evaluation.
at::Tensor head_loss_sum(const ModelConfig& model, const StateGroup& state, const at::Tensor& y_TD,
                         const at::Tensor& targets_T, const HeadOptions& options = {});

}  // namespace hetermoe
