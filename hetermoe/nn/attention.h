#pragma once
#include <ATen/ATen.h>

#include <memory>
#include <vector>

#include "hetermoe/nn/params.h"
#include "hetermoe/nn/router_jitter.h"
#include "hetermoe/nn/sequences.h"

namespace hetermoe {

/// The tensors that a product leaves for the gradient of its weight.
struct LeftProduct {
  std::size_t weight;        ///< position in state.values
  at::Tensor x;              ///< its input
  RouterJitter jitter = {};  ///< by which x is yet to be multiplied
  at::Tensor dout = {};      ///< gradient of its result, once backward came by; undefined = none came
  /// Backward adds the weight's gradient here when it comes by, and leaves nothing. Undefined = it leaves
  /// both.
  at::Tensor sum = {};
};

/// Adds the gradient of the weight of a product whose `dout` is there.
void add_left_(const at::Tensor& sum, const LeftProduct& left);

/// The weights of a state group as autograd leaves (sharing storage), or plainly as they are. In a group with
/// adapters the adapters are the leaves, and products add their terms.
class Leaves {
 public:
  /// kLater: the weights of products are no leaves; see left() for their gradients.
  enum class Grad { kNo, kYes, kLater };
  Leaves(const StateGroup& state, Grad grad);
  const at::Tensor& operator[](Weight weight) const;
  /// x weight^T; the second computed in `wide`, of jittered x. Differentiable.
  at::Tensor product(const at::Tensor& x, Weight weight) const;
  at::Tensor wide_product(const at::Tensor& x, Weight weight, at::ScalarType wide,
                          const RouterJitter& jitter) const;
  /// In order of state.values, then A and B of each adapter.
  const std::vector<at::Tensor>& all() const { return leaves_; }
  /// With kLater, of all products that were asked for.
  const std::vector<std::shared_ptr<LeftProduct>>& left() const { return *left_; }

 private:
  std::size_t position_of(Weight weight) const;
  void leave(const at::Tensor& x, std::size_t weight, const at::Tensor& out,
             const RouterJitter& jitter = {}) const;

  at::Tensor with_adapters(const at::Tensor& x, std::size_t weight, at::Tensor out) const;

  std::vector<Weight> weights_;
  std::vector<at::Tensor> leaves_;
  const std::vector<Adapter>& adapters_;
  bool trains_ = false;                                              // the weights themselves
  std::shared_ptr<std::vector<std::shared_ptr<LeftProduct>>> left_;  // null unless kLater
};

/// The inputs of attention, with norms and rotary embedding applied: [B, S, heads, *].
struct Heads {
  at::Tensor q, k, v;
};
/// Heads of the normed input [T, H], whose rows `sequences` describe: [1, T, heads, *]. Differentiable.
Heads projected_heads(const ModelConfig& model, i64 layer, const Leaves& leaves, const at::Tensor& normed_TH,
                      const Sequences& sequences);
/// The same of MLA, with latents in place of keys and values: k the one turned key, v the normed latent.
Heads projected_latents(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed_TH,
                        const Sequences& sequences);
/// Keys and values of some query heads, from latents. kv_TA: what kv_b makes of v for these heads.
Heads heads_of_latents(const ModelConfig& model, const Heads& latents, const at::Tensor& kv_TA);
/// Which query heads: those from `first` on, with their sinks where the model has some.
struct SomeHeads {
  i64 first = 0;
  at::Tensor sinks = {};
};
/// Causal attention of some query heads, of whole sequences. k and v: of the key-value heads that these need.
/// [1, T, heads, *]; returns [T, heads * width of v]. Differentiable.
at::Tensor attention_of_heads(const ModelConfig& model, i64 layer, const Heads& heads, const SomeHeads& which,
                              const Sequences& sequences);

/// The last product of attention: of what the heads have made of T tokens. Differentiable.
at::Tensor attention_output(const ModelConfig& model, const Leaves& leaves, const at::Tensor& context_TA);

/// An output of a graph that passes gradients on to `x` and holds no numbers.
at::Tensor stand_in(const at::Tensor& x);

/// Causal self-attention of a layer, of normed input [T, H] of whole sequences, output projection
/// included: [T, H]. Differentiable.
at::Tensor self_attention(const ModelConfig& model, i64 layer, const Leaves& leaves,
                          const at::Tensor& normed_TH, const Sequences& sequences);

}  // namespace hetermoe
