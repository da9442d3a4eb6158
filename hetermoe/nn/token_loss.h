#pragma once
#include <ATen/ATen.h>

#include <memory>

#include "hetermoe/base/types.h"

namespace hetermoe {

inline constexpr i64 kIgnoreTarget = -100;  ///< a target that counts for nothing, as in Hugging Face

/// The loss of each token by its logits, of the tokens of one op of the head. The head computes logits of
/// some tokens at a time and adds up what the loss makes of them; it knows of no loss in particular.
class TokenLoss {
 public:
  virtual ~TokenLoss() = default;

  struct Part {
    at::Tensor loss_T;      ///< fp32, or fp64 of fp64 logits; zero where the target does not count
    at::Tensor dlogits_TV;  ///< gradient of the sum of losses by the logits, times `scale`, in their dtype
  };
  /// logits_TV: of the tokens from `first` on; may be overwritten.
  virtual Part with_gradient(const at::Tensor& logits_TV, i64 first, double scale) const = 0;
  virtual at::Tensor alone(const at::Tensor& logits_TV, i64 first) const = 0;
};

/// The mean of -ln(probability of the target). targets_T: int64, kIgnoreTarget does not count; on any device.
/// logits: a tensor of the device and the dtype of the logits that will come.
std::unique_ptr<TokenLoss> make_cross_entropy(const at::Tensor& targets_T, const at::Tensor& logits);

using MakeTokenLoss = std::unique_ptr<TokenLoss> (*)(const at::Tensor& targets_T, const at::Tensor& logits);

}  // namespace hetermoe
