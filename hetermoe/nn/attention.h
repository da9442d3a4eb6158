#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "hetermoe/nn/params.h"

namespace hetermoe {

/// The weights of a state group as autograd leaves (sharing storage), or plainly as they are.
class Leaves {
 public:
  enum class Grad { kNo, kYes };
  Leaves(const StateGroup& state, Grad grad);
  const at::Tensor& operator[](Weight weight) const;
  const std::vector<at::Tensor>& all() const { return leaves_; }  ///< in order of state.values

 private:
  std::vector<Weight> weights_;
  std::vector<at::Tensor> leaves_;
};

/// Causal self-attention of normed input [T, H] with T = sequences * seq_len, output projection included: [T,
/// H]. Differentiable.
at::Tensor self_attention(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed_TH,
                          i64 seq_len);

}  // namespace hetermoe
