#include "hetermoe/nn/attention.h"

#include <algorithm>
#include <array>

#include "hetermoe/base/error.h"
#include "hetermoe/nn/causal_attention.h"
#include "hetermoe/nn/products.h"
#include "hetermoe/nn/rms_norm.h"
#include "hetermoe/nn/rope.h"

namespace hetermoe {
namespace {

/// The norms inside MLA use their class's default, not the model's rms_norm_eps (transformers, DeepSeek V2
/// and V3).
constexpr double kLatentNormEps = 1e-6;

RopeLayout rope_layout(const ModelConfig& model) {
  return model.rope_interleaved ? RopeLayout::kPairs : RopeLayout::kHalves;
}

/// With the norms and the clipping that some families put before the rotation.
at::Tensor normed_attention(const ModelConfig& model, const Leaves& leaves, const at::Tensor& qkv,
                            const HeadShape& shape, const RopeTable& table) {
  const i64 q_rows = shape.num_heads * shape.dim, kv_rows = shape.num_kv_heads * shape.dim;
  std::vector<at::Tensor> out = qkv.split_with_sizes({q_rows, kv_rows, kv_rows}, 1);
  const std::array<Weight, 2> norms = {Weight::kQNorm, Weight::kKNorm};
  for (std::size_t i = 0; i < out.size(); ++i) {
    at::Tensor& x = out[i];
    x = x.contiguous();  // so that the fused projection need not be kept
    if (i < 2 && model.qk_norm == QkNorm::kWhole) x = rms_norm(x, leaves[norms[i]], model.norm_eps);
    if (model.clip_qkv > 0) x = x.clamp(-model.clip_qkv, model.clip_qkv);
    x = x.view({-1, shape.seq_len, i == 0 ? shape.num_heads : shape.num_kv_heads, shape.dim});
    if (i < 2 && model.qk_norm == QkNorm::kPerHead) x = rms_norm(x, leaves[norms[i]], model.norm_eps);
    if (i < 2) x = rope(x, table, rope_layout(model));
  }
  return causal_attention(out[0], out[1], out[2], shape.how()).reshape({qkv.size(0), -1});
}

at::Tensor gqa(const ModelConfig& model, i64 layer, const Leaves& leaves, const at::Tensor& normed,
               i64 seq_len) {
  const HeadShape shape{seq_len, model.num_heads, model.num_kv_heads, model.head_dim, model.window_of(layer)};
  const RopeTable table = rope_table(seq_len, rope_angles(model, seq_len), normed.options());
  const auto project = [&] { return leaves.product(normed, Weight::kQkv); };
  const bool plain = model.qk_norm == QkNorm::kNone && model.clip_qkv == 0;
  const at::Tensor out = plain ? rotary_attention(project(), shape, table, rope_layout(model))
                               : normed_attention(model, leaves, project(), shape, table);
  return leaves.product(out, Weight::kO);
}

at::Tensor mla_queries(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed) {
  if (model.q_lora_rank == 0) return leaves.product(normed, Weight::kQ);
  const at::Tensor latent =
      rms_norm(leaves.product(normed, Weight::kQA), leaves[Weight::kQANorm], kLatentNormEps);
  return leaves.product(latent, Weight::kQB);
}

at::Tensor mla(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed, i64 seq_len) {
  const i64 num_sequences = normed.size(0) / seq_len, num_heads = model.num_heads;
  const i64 nope = model.qk_nope_dim, turned = model.qk_rope_dim;
  const RopeTable table = rope_table(seq_len, rope_angles(model, seq_len), normed.options());
  const auto q = mla_queries(model, leaves, normed)
                     .view({num_sequences, seq_len, num_heads, nope + turned})
                     .split_with_sizes({nope, turned}, -1);
  const auto compressed =
      leaves.product(normed, Weight::kKvA).split_with_sizes({model.kv_lora_rank, turned}, 1);
  const at::Tensor latent = rms_norm(compressed[0].contiguous(), leaves[Weight::kKvANorm], kLatentNormEps);
  const auto kv = leaves.product(latent, Weight::kKvB)
                      .view({num_sequences, seq_len, num_heads, nope + model.v_dim})
                      .split_with_sizes({nope, model.v_dim}, -1);
  const at::Tensor q_turned = rope(q[1], table, rope_layout(model));
  // One turned key serves all heads.
  const at::Tensor k_turned =
      rope(compressed[1].reshape({num_sequences, seq_len, 1, turned}), table, rope_layout(model));
  const at::Tensor queries = at::cat({q[0], q_turned}, -1);
  const at::Tensor keys = at::cat({kv[0], k_turned.expand({num_sequences, seq_len, num_heads, turned})}, -1);
  const at::Tensor out = causal_attention(queries, keys, kv[1], {score_scale(model)});
  return leaves.product(out.reshape({-1, num_heads * model.v_dim}), Weight::kO);
}

}  // namespace

Leaves::Leaves(const StateGroup& state, Grad grad) : weights_(state.weights) {
  for (const at::Tensor& value : state.values) {
    leaves_.push_back(grad != Grad::kNo && state.trainable() ? value.detach().requires_grad_() : value);
  }
  if (grad == Grad::kLater) left_ = std::make_shared<std::vector<std::shared_ptr<LeftProduct>>>();
}

std::size_t Leaves::position_of(Weight weight) const {
  const auto it = std::find(weights_.begin(), weights_.end(), weight);
  HM_CHECK(it != weights_.end(), "state group has no weight {}", static_cast<int>(weight));
  return static_cast<std::size_t>(it - weights_.begin());
}

const at::Tensor& Leaves::operator[](Weight weight) const { return leaves_[position_of(weight)]; }

at::Tensor Leaves::product(const at::Tensor& x, Weight weight) const {
  const std::size_t index = position_of(weight);
  if (left_ == nullptr) return apply_linear(x, leaves_[index]);
  at::Tensor out = apply_linear(x, leaves_[index].detach());
  leave(x, index, out);
  return out;
}

at::Tensor Leaves::wide_product(const at::Tensor& x, Weight weight, at::ScalarType wide) const {
  const std::size_t index = position_of(weight);
  if (left_ == nullptr) return apply_wide_linear(x, leaves_[index], wide);
  at::Tensor out = apply_wide_linear(x, leaves_[index].detach(), wide);
  leave(x, index, out);
  return out;
}

void Leaves::leave(const at::Tensor& x, std::size_t weight, const at::Tensor& out) const {
  auto left = std::make_shared<LeftProduct>(LeftProduct{weight, x.detach(), {}});
  out.register_hook([left](const at::Tensor& dout) { left->dout = dout; });
  left_->push_back(std::move(left));
}

at::Tensor self_attention(const ModelConfig& model, i64 layer, const Leaves& leaves,
                          const at::Tensor& normed_TH, i64 seq_len) {
  return model.attention == AttentionKind::kMla ? mla(model, leaves, normed_TH, seq_len)
                                                : gqa(model, layer, leaves, normed_TH, seq_len);
}

}  // namespace hetermoe
