#include "hetermoe/nn/embed_head.h"

#include <vector>

#include <algorithm>

#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/nn/rms_norm.h"
#include "hetermoe/nn/rows.h"

namespace hetermoe {
namespace {

Weight output_weight(const StateGroup& state) {
  return state.has(Weight::kLmHead) ? Weight::kLmHead : Weight::kEmbedding;
}

/// Calls f(first token, number of tokens) for every chunk.
template <class F>
void for_each_chunk(i64 num_tokens, i64 chunk_tokens, F f) {
  for (i64 begin = 0; begin < num_tokens; begin += chunk_tokens)
    f(begin, std::min(chunk_tokens, num_tokens - begin));
}

struct Targets {
  at::Tensor given_T;     ///< as they came
  at::Tensor index_T1;    ///< the target, 0 where it does not count
  at::Tensor counted_T1;  ///< bool
};

/// Kernels of our own read the targets as they came, and have no need of the others.
Targets read_targets(const at::Tensor& targets_T, const at::Device& device, bool own_kernels) {
  const at::Tensor given = targets_T.to(device), targets = given.unsqueeze(1);
  if (own_kernels) return {given, {}, {}};
  const at::Tensor counted = targets.ne(kIgnoreTarget);
  return {given, targets.masked_fill(counted.logical_not(), 0), counted};
}

Targets part_of(const Targets& targets, i64 begin, i64 count) {
  const auto part = [&](const at::Tensor& x) { return x.defined() ? x.narrow(0, begin, count) : x; };
  return {part(targets.given_T), part(targets.index_T1), part(targets.counted_T1)};
}

/// Cross entropy of each token [T, 1], zero where the target does not count.
at::Tensor token_losses(const at::Tensor& log_probabilities_TV, const Targets& targets) {
  return -log_probabilities_TV.gather(1, targets.index_T1).masked_fill(targets.counted_T1.logical_not(), 0);
}

/// The loss of a step as its chunks make it.
struct LossSum {
  at::Tensor sum;                     ///< fp64
  std::vector<at::Tensor> of_tokens;  ///< not added yet, without the scale: one addition for all chunks
};

/// Adds the losses of some tokens times `scale` to `loss`. Returns their gradient by the logits times
/// loss_scale, in the dtype of h: (softmax - one-hot) * scale, zero where the target does not count.
at::Tensor logit_gradient(const at::Tensor& h_TD, const at::Tensor& output_VD, const Targets& targets,
                          double scale, double loss_scale, LossSum& loss) {
  if (runs_on_kernels(h_TD)) {
    const at::Tensor logits = apply_linear(h_TD, output_VD);
    loss.of_tokens.push_back(gpu_cross_entropy(logits, targets.given_T, scale * loss_scale));
    return logits;
  }
  const at::ScalarType wide = accumulate_type(h_TD.scalar_type());
  at::Tensor logits = apply_linear(h_TD, output_VD).to(wide).log_softmax(-1);
  loss.sum += token_losses(logits, targets).sum(at::kDouble) * scale;
  at::Tensor dlogits = logits.exp_();
  dlogits.scatter_add_(1, targets.index_T1, at::full_like(targets.index_T1, -1, dlogits.options()));
  dlogits.mul_(targets.counted_T1.to(wide) * (scale * loss_scale));
  return dlogits.to(h_TD.scalar_type());
}

}  // namespace

at::Tensor embed_forward(const StateGroup& state, const at::Tensor& tokens_T) {
  const at::Tensor& table = state.value(Weight::kEmbedding);
  return table.index_select(0, tokens_T.to(table.device()));
}

void embed_backward(StateGroup& state, const at::Tensor& tokens_T, const at::Tensor& dy_TD) {
  add_rows_(state.grad(Weight::kEmbedding), tokens_T, dy_TD);
}

HeadResult head_forward_backward(const ModelConfig& model, StateGroup& state, const at::Tensor& y_TD,
                                 const at::Tensor& targets_T, i64 target_count, const HeadOptions& options) {
  const Weight weight = output_weight(state);
  const at::Tensor& output = state.value(weight);
  const NormForward normed = rms_norm_forward(y_TD, state.value(Weight::kFinalNorm), model.norm_eps);
  const Targets targets = read_targets(targets_T, y_TD.device(), runs_on_kernels(y_TD));
  const double scale = 1.0 / static_cast<double>(std::max<i64>(1, target_count));
  LossSum loss;
  if (!runs_on_kernels(y_TD)) loss.sum = at::zeros({}, y_TD.options().dtype(at::kDouble));
  at::Tensor dnormed = at::empty_like(y_TD);
  for_each_chunk(y_TD.size(0), options.chunk_tokens, [&](i64 begin, i64 count) {
    const at::Tensor h = normed.out.narrow(0, begin, count);
    const at::Tensor dlogits =
        logit_gradient(h, output, part_of(targets, begin, count), scale, options.loss_scale, loss);
    at::Tensor dh = dnormed.narrow(0, begin, count);
    multiply_into(dh, dlogits, output);
    if (state.trainable()) add_product_(state.grad(weight), dlogits.t(), h);
  });
  NormGradient grad = rms_norm_backward(y_TD, state.value(Weight::kFinalNorm), normed.rstd, dnormed);
  if (state.trainable()) add_gradient_(state.grad(Weight::kFinalNorm), grad.dweight_D);
  if (!loss.of_tokens.empty()) loss.sum = at::cat(loss.of_tokens).sum() * scale;
  if (!loss.sum.defined()) loss.sum = at::zeros({}, y_TD.options().dtype(at::kDouble));  // no tokens
  return {loss.sum, grad.dx};
}

at::Tensor head_loss_sum(const ModelConfig& model, const StateGroup& state, const at::Tensor& y_TD,
                         const at::Tensor& targets_T, const HeadOptions& options) {
  const at::Tensor& output = state.value(output_weight(state));
  const NormForward normed = rms_norm_forward(y_TD, state.value(Weight::kFinalNorm), model.norm_eps);
  const Targets targets = read_targets(targets_T, y_TD.device(), runs_on_kernels(y_TD));
  at::Tensor sum = at::zeros({}, y_TD.options().dtype(at::kDouble));
  for_each_chunk(y_TD.size(0), options.chunk_tokens, [&](i64 begin, i64 count) {
    const Targets part = part_of(targets, begin, count);
    const at::Tensor logits = apply_linear(normed.out.narrow(0, begin, count), output);
    if (runs_on_kernels(logits)) {
      sum += gpu_cross_entropy(logits, part.given_T, 0).sum();
      return;
    }
    sum +=
        token_losses(logits.to(accumulate_type(logits.scalar_type())).log_softmax(-1), part).sum(at::kDouble);
  });
  return sum;
}

}  // namespace hetermoe
