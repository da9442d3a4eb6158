#pragma once
#include <ATen/ATen.h>

#include <memory>

#include "hetermoe/nn/params.h"
#include "hetermoe/nn/sequences.h"

// The attention part of a layer whose sequences a team has: projection_forward() of each device's tokens;
// scores_forward() of each device's heads, over all tokens of the team; attention_forward() of each device's
// tokens, with what came of the scores. Letters: T tokens, D hidden size, A query heads * width of a value.
namespace hetermoe {

struct PartGraph;  ///< autograd graph of one forward call
/// Queries, keys and values of T tokens and some heads: [T, heads, *].
struct TokenHeads {
  at::Tensor q, k, v;
};

struct ProjectionOutput {
  TokenHeads heads;                  ///< of all heads
  std::shared_ptr<PartGraph> graph;  ///< unless !keep
};
/// Norm, projections and rotary embedding of a device's tokens y_TD.
ProjectionOutput projection_forward(const ModelConfig& model, i64 layer, const StateGroup& state,
                                    const at::Tensor& y_TD, const Sequences& sequences, bool keep);
/// Gradient of y, and adds the gradients of the parameters into state.grads. graph: used up.
at::Tensor projection_backward(StateGroup& state, PartGraph& graph, const TokenHeads& gradient);

struct ScoresOutput {
  at::Tensor context_TA;             ///< [T, heads * width of values]
  std::shared_ptr<PartGraph> graph;  ///< unless !keep
};
/// The attention kernel of the query heads from `first_head` on; T tokens are the team's. 0 heads are fine.
/// sinks: the state that has them; null = the model has none.
ScoresOutput scores_forward(const ModelConfig& model, i64 layer, const StateGroup* sinks,
                            const TokenHeads& heads, i64 first_head, const Sequences& sequences, bool keep);
/// Gradients of queries, keys and values, and adds those of the sinks. graph: used up.
TokenHeads scores_backward(StateGroup* sinks, PartGraph& graph, const at::Tensor& dcontext_TA);

}  // namespace hetermoe
