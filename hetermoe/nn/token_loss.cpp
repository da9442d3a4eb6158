#include "hetermoe/nn/token_loss.h"

#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {
namespace {

/// By a kernel of our own, which reads the targets as they came.
class KernelCrossEntropy : public TokenLoss {
 public:
  explicit KernelCrossEntropy(at::Tensor targets_T) : targets_T_(std::move(targets_T)) {}

  Part with_gradient(const at::Tensor& logits_TV, i64 first, double scale) const override {
    return {gpu_cross_entropy(logits_TV, of(logits_TV, first), scale), logits_TV};
  }
  at::Tensor alone(const at::Tensor& logits_TV, i64 first) const override {
    return gpu_cross_entropy(logits_TV, of(logits_TV, first), 0);
  }

 private:
  at::Tensor of(const at::Tensor& logits_TV, i64 first) const {
    return targets_T_.narrow(0, first, logits_TV.size(0));
  }
  at::Tensor targets_T_;
};

class CrossEntropy : public TokenLoss {
 public:
  explicit CrossEntropy(const at::Tensor& targets_T) {
    const at::Tensor targets = targets_T.unsqueeze(1);
    counted_T1_ = targets.ne(kIgnoreTarget);
    index_T1_ = targets.masked_fill(counted_T1_.logical_not(), 0);
  }

  /// (softmax - one-hot) * scale, zero where the target does not count.
  Part with_gradient(const at::Tensor& logits_TV, i64 first, double scale) const override {
    const at::Tensor log_probabilities = log_softmax(logits_TV);
    const at::Tensor index = index_T1_.narrow(0, first, logits_TV.size(0)),
                     counted = counted_T1_.narrow(0, first, logits_TV.size(0));
    const at::Tensor loss = losses(log_probabilities, first);
    at::Tensor dlogits = log_probabilities.exp_();
    dlogits.scatter_add_(1, index, at::full_like(index, -1, dlogits.options()));
    dlogits.mul_(counted.to(dlogits.scalar_type()) * scale);
    return {loss, dlogits.to(logits_TV.scalar_type())};
  }
  at::Tensor alone(const at::Tensor& logits_TV, i64 first) const override {
    return losses(log_softmax(logits_TV), first);
  }

 private:
  static at::Tensor log_softmax(const at::Tensor& logits_TV) {
    return logits_TV.to(accumulate_type(logits_TV.scalar_type())).log_softmax(-1);
  }
  at::Tensor losses(const at::Tensor& log_probabilities_TV, i64 first) const {
    const i64 count = log_probabilities_TV.size(0);
    return (-log_probabilities_TV.gather(1, index_T1_.narrow(0, first, count)))
        .masked_fill(counted_T1_.narrow(0, first, count).logical_not(), 0)
        .squeeze(1);
  }

  at::Tensor index_T1_;    ///< the target, 0 where it does not count
  at::Tensor counted_T1_;  ///< bool
};

}  // namespace

std::unique_ptr<TokenLoss> make_cross_entropy(const at::Tensor& targets_T, const at::Tensor& logits) {
  const at::Tensor targets = targets_T.to(logits.device());
  if (runs_on_kernels(logits)) return std::make_unique<KernelCrossEntropy>(targets);
  return std::make_unique<CrossEntropy>(targets);
}

}  // namespace hetermoe
