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
/// The form of k and v. kHeads: of key-value heads. kLatents (MLA): the one turned key and the latent, [T, 1,
/// *], from which the weight kv_b makes keys and values of any heads.
enum class KeyForm { kHeads, kLatents };

struct ProjectionOutput {
  TokenHeads heads;                  ///< of all heads
  std::shared_ptr<PartGraph> graph;  ///< unless !keep
};
/// Norm, projections and rotary embedding of a device's tokens y_TD.
ProjectionOutput projection_forward(const ModelConfig& model, i64 layer, const StateGroup& state,
                                    const at::Tensor& y_TD, const Sequences& sequences, KeyForm form,
                                    bool keep);
/// Gradient of y, and adds the gradients of the parameters into state.grads. graph: used up.
at::Tensor projection_backward(StateGroup& state, PartGraph& graph, const TokenHeads& gradient);

struct ScoresOutput {
  at::Tensor context_TA;             ///< [T, heads * width of values]
  std::shared_ptr<PartGraph> graph;  ///< unless !keep
};
/// The query heads of a device, and the state with the weights of which they use rows: sinks, and kv_b where
/// latents came; null = there are none.
struct OwnHeads {
  i64 first = 0;
  KeyForm form = KeyForm::kHeads;
  const StateGroup* weights = nullptr;
};
/// The attention kernel of a device's query heads; T tokens are the team's. 0 heads are fine.
ScoresOutput scores_forward(const ModelConfig& model, i64 layer, const OwnHeads& own, const TokenHeads& heads,
                            const Sequences& sequences, bool keep);
/// Gradients of queries, keys and values, and adds those of the used rows of weights. graph: used up.
TokenHeads scores_backward(StateGroup* weights, PartGraph& graph, const at::Tensor& dcontext_TA);

}  // namespace hetermoe
