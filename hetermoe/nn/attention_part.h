#pragma once
#include <ATen/ATen.h>

#include <memory>

#include "hetermoe/nn/params.h"
#include "hetermoe/nn/router_jitter.h"
#include "hetermoe/nn/sequences.h"

// The attention part of a layer: norm, attention, residual, norm, router, and the shared experts or the dense
// MLP. Letters: T tokens (whole sequences; of a device of a team any), D hidden size, K top-k, E experts, B
// sequences of which some tokens are there, A groups of the balancing loss.
//
// A team divides it: see team_attention.h.
namespace hetermoe {

/// kYes: backward needs no recomputation; costs the memory of the graph. kSelected: without what norms and
/// the activation made, which backward makes again.
enum class KeepGraph { kNo, kYes, kSelected };

struct AttentionGraph;  ///< autograd graph of one forward call
struct AttentionLeft;   ///< what one backward call leaves for attention_weight_gradients()

struct AttentionOutput {
  at::Tensor u_TD;  ///< residual stream after attention, plus shared experts or dense MLP
  // Undefined in dense layers:
  at::Tensor x_TD;                        ///< normed input of the experts
  at::Tensor topk_TK;                     ///< int64 expert ids, on the device of y
  at::Tensor weights_TK;                  ///< routing weights, fp32 (fp64 in an fp64 model)
  at::Tensor counts_BE;                   ///< int64 copies per expert in each sequence
  std::shared_ptr<AttentionGraph> graph;  ///< unless KeepGraph::kNo
};

/// How a forward routes.
struct RouterTask {
  at::Tensor topk_TK = {};   ///< int64 experts that are taken in place of choosing; undefined = choose now
  bool has_gaps = false;     ///< tokens whose ids are -1 choose now
  RouterJitter jitter = {};  ///< of the router's input
  bool z_loss = false;       ///< backward adds one
};

/// y_TD: the layer's input; T = 0 is fine. context_TA: in a team the attention kernel's output of these
/// tokens, all heads; undefined = it is computed here, of whole sequences.
AttentionOutput attention_forward(const ModelConfig& model, i64 layer, const StateGroup& state,
                                  const at::Tensor& y_TD, const Sequences& sequences,
                                  KeepGraph keep_graph = KeepGraph::kNo, const RouterTask& task = {},
                                  const at::Tensor& context_TA = {});

/// x_TD of the forward call that made a graph with KeepGraph::kSelected, made again.
at::Tensor rows_of_experts(const ModelConfig& model, const StateGroup& state, const AttentionGraph& graph);

/// The input of backward. y_TD and topk_TK come from forward: the choice of experts is never recomputed.
struct AttentionBackwardInput {
  at::Tensor y_TD;
  at::Tensor du_TD;  ///< gradient of u
  // Undefined in dense layers:
  at::Tensor topk_TK;
  at::Tensor dx_TD;        ///< gradient of x from the experts; undefined = zero
  at::Tensor dweights_TK;  ///< undefined = zero
  at::Tensor balance_AE;   ///< gradient of the balancing loss by router probabilities: the tokens are split
                           ///< into A equal contiguous parts. A = 1 (one group) to B (a row for every
                           ///< sequence, and so where sequences are not whole). Undefined = none
  std::shared_ptr<AttentionGraph> graph;  ///< of forward; null = recompute. Used up by the call
  bool leaves_weights = false;            ///< not for frozen states
  RouterJitter jitter = {};               ///< of forward
  at::Tensor context_TA = {};             ///< of forward
  double z_factor = 0;  ///< the z-loss is this times the sum over tokens of logsumexp(logits)^2
};

struct AttentionGradient {
  at::Tensor dy_TD;             ///< in a team without what comes by way of the scores
  at::Tensor dcontext_TA = {};  ///< of a team
  at::Tensor aux_loss;          ///< 0-dim: this part's share of the balancing loss, the sum of balance *
                                ///< probabilities, and of the z-loss; 0 without one
  std::shared_ptr<AttentionLeft> left = nullptr;  ///< with leaves_weights; null without tokens
};

/// Adds the gradients of the parameters into state.grads, unless it leaves them; computes none when the state
/// is frozen.
AttentionGradient attention_backward(const ModelConfig& model, i64 layer, StateGroup& state,
                                     const AttentionBackwardInput& input, const Sequences& sequences);
/// Adds the gradients that a backward left, with the bits that it would have added.
void attention_weight_gradients(StateGroup& state, AttentionLeft& left);

}  // namespace hetermoe
