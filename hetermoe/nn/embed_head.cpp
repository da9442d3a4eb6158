#include "hetermoe/nn/embed_head.h"

#include <algorithm>
#include <vector>

#include "hetermoe/model/op_cost.h"
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
void for_each_chunk(const ModelConfig& model, const at::Tensor& y_TD, const HeadOptions& options, F f) {
  const i64 num_tokens = y_TD.size(0);
  i64 chunk_tokens = options.chunk_tokens;
  if (chunk_tokens == 0) {
    const auto element = static_cast<Bytes>(y_TD.element_size());
    chunk_tokens = takes_gpu_operators(y_TD) ? head_run_on_gpu(model, element) : kHeadRunOnCpu;
  }
  for (i64 begin = 0; begin < num_tokens; begin += chunk_tokens)
    f(begin, std::min(chunk_tokens, num_tokens - begin));
}

/// The losses of all chunks.
class LossSum {
 public:
  LossSum(const at::Tensor& y_TD, double scale)
      : at_once_(runs_on_kernels(y_TD)), scale_(scale), wide_(y_TD.options().dtype(at::kDouble)) {
    if (!at_once_) sum_ = at::zeros({}, wide_);
  }
  /// Kernels are launched one by one, so there all chunks are added at the end.
  void add(const at::Tensor& loss_T) {
    if (at_once_)
      of_chunks_.push_back(loss_T);
    else
      sum_ += loss_T.sum(at::kDouble) * scale_;
  }
  at::Tensor total() const {
    if (!of_chunks_.empty()) return at::cat(of_chunks_).sum() * scale_;
    return sum_.defined() ? sum_ : at::zeros({}, wide_);
  }

 private:
  bool at_once_;
  double scale_;
  at::TensorOptions wide_;
  at::Tensor sum_;  // fp64
  std::vector<at::Tensor> of_chunks_;
};

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
  const std::unique_ptr<TokenLoss> token_loss = options.make_loss(targets_T, y_TD);
  const double scale = 1.0 / static_cast<double>(std::max<i64>(1, target_count));
  LossSum loss(y_TD, scale);
  at::Tensor dnormed = at::empty_like(y_TD);
  for_each_chunk(model, y_TD, options, [&](i64 begin, i64 count) {
    const at::Tensor h = normed.out.narrow(0, begin, count);
    const TokenLoss::Part part =
        token_loss->with_gradient(apply_linear(h, output), begin, scale * options.loss_scale);
    loss.add(part.loss_T);
    at::Tensor dh = dnormed.narrow(0, begin, count);
    multiply_into(dh, part.dlogits_TV, output);
    if (state.trainable()) add_product_(state.grad(weight), part.dlogits_TV.t(), h);
  });
  NormGradient grad = rms_norm_backward(y_TD, state.value(Weight::kFinalNorm), normed.rstd, dnormed);
  if (state.trainable()) add_gradient_(state.grad(Weight::kFinalNorm), grad.dweight_D);
  return {loss.total(), grad.dx};
}

at::Tensor head_loss_sum(const ModelConfig& model, const StateGroup& state, const at::Tensor& y_TD,
                         const at::Tensor& targets_T, const HeadOptions& options) {
  const at::Tensor& output = state.value(output_weight(state));
  const NormForward normed = rms_norm_forward(y_TD, state.value(Weight::kFinalNorm), model.norm_eps);
  const std::unique_ptr<TokenLoss> token_loss = options.make_loss(targets_T, y_TD);
  LossSum loss(y_TD, 1);
  for_each_chunk(model, y_TD, options, [&](i64 begin, i64 count) {
    loss.add(token_loss->alone(apply_linear(normed.out.narrow(0, begin, count), output), begin));
  });
  return loss.total();
}

}  // namespace hetermoe
