#include "hetermoe/nn/attention.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <array>

#include "hetermoe/base/error.h"
#include "hetermoe/nn/causal_attention.h"
#include "hetermoe/nn/kv_cache.h"
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

/// Queries, keys and values of all heads, [T, q + k + v].
at::Tensor project(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed) {
  const at::Tensor qkv = leaves.product(normed, Weight::kQkv);
  return model.qkv_bias ? qkv + leaves[Weight::kQkvBias] : qkv;
}

/// With the norms and the clipping that some families put before the rotation.
Heads gqa_heads(const ModelConfig& model, const Leaves& leaves, const at::Tensor& qkv, const HeadShape& shape,
                const RopeTable& table) {
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
  return {out[0], out[1], out[2]};
}

HeadShape head_shape(const ModelConfig& model, i64 layer, const Sequences& sequences) {
  return {sequences.seq_len, model.num_heads,        model.num_kv_heads,
          model.head_dim,    model.window_of(layer), sequences.documents};
}

/// With what the leaves have of it.
HeadShape head_shape(const ModelConfig& model, i64 layer, const Leaves& leaves, const Sequences& sequences) {
  HeadShape shape = head_shape(model, layer, sequences);
  if (model.attention_sinks) shape.sinks = leaves[Weight::kSinks];
  return shape;
}

at::Tensor gqa(const ModelConfig& model, i64 layer, const Leaves& leaves, const at::Tensor& normed,
               const Sequences& sequences) {
  const i64 seq_len = sequences.seq_len;
  const HeadShape shape = head_shape(model, layer, leaves, sequences);
  const RopeTable table = rope_table(seq_len, rope_angles(model, seq_len), normed.options());
  const bool plain = model.qk_norm == QkNorm::kNone && model.clip_qkv == 0;
  if (plain)
    return attention_output(
        model, leaves, rotary_attention(project(model, leaves, normed), shape, table, rope_layout(model)));
  const Heads heads = gqa_heads(model, leaves, project(model, leaves, normed), shape, table);
  const at::Tensor out = causal_attention(heads.q, heads.k, heads.v, shape.how());
  return attention_output(model, leaves, out.reshape({normed.size(0), -1}));
}

at::Tensor mla_queries(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed) {
  if (model.q_lora_rank == 0) return leaves.product(normed, Weight::kQ);
  const at::Tensor latent =
      rms_norm(leaves.product(normed, Weight::kQA), leaves[Weight::kQANorm], kLatentNormEps);
  return leaves.product(latent, Weight::kQB);
}

Heads mla_latents(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed, i64 seq_len,
                  const RopeTable& table) {
  const i64 num_sequences = normed.size(0) / seq_len, num_heads = model.num_heads;
  const i64 nope = model.qk_nope_dim, turned = model.qk_rope_dim;
  const auto q = mla_queries(model, leaves, normed)
                     .view({num_sequences, seq_len, num_heads, nope + turned})
                     .split_with_sizes({nope, turned}, -1);
  const auto compressed =
      leaves.product(normed, Weight::kKvA).split_with_sizes({model.kv_lora_rank, turned}, 1);
  const at::Tensor latent = rms_norm(compressed[0].contiguous(), leaves[Weight::kKvANorm], kLatentNormEps);
  const at::Tensor q_turned = rope(q[1], table, rope_layout(model));
  const at::Tensor k_turned =
      rope(compressed[1].reshape({num_sequences, seq_len, 1, turned}), table, rope_layout(model));
  return {at::cat({q[0], q_turned}, -1), k_turned,
          latent.view({num_sequences, seq_len, 1, model.kv_lora_rank})};
}

Heads mla_heads(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed, i64 seq_len,
                const RopeTable& table) {
  const Heads latents = mla_latents(model, leaves, normed, seq_len, table);
  return heads_of_latents(model, latents, leaves.product(latents.v.flatten(0, 2), Weight::kKvB));
}

at::Tensor mla(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed,
               const Sequences& sequences) {
  const i64 seq_len = sequences.seq_len;
  const RopeTable table = rope_table(seq_len, rope_angles(model, seq_len), normed.options());
  const Heads heads = mla_heads(model, leaves, normed, seq_len, table);
  const at::Tensor out =
      causal_attention(heads.q, heads.k, heads.v, {score_scale(model), 0, sequences.documents});
  return leaves.product(out.reshape({-1, model.num_heads * model.v_dim}), Weight::kO);
}

}  // namespace

Leaves::Leaves(const StateGroup& state, Grad grad)
    : weights_(state.weights), adapters_(state.adapters), trains_(grad != Grad::kNo && state.trainable()) {
  const auto leaf = [](const at::Tensor& value, bool trains) {
    return trains ? value.detach().requires_grad_() : value;
  };
  for (const at::Tensor& value : state.values) leaves_.push_back(leaf(value, trains_));
  for (const at::Tensor& value : values_of(adapters_)) leaves_.push_back(leaf(value, grad != Grad::kNo));
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
  if (left_ == nullptr || !trains_) return with_adapters(x, index, apply_linear(x, leaves_[index]));
  at::Tensor out = apply_linear(x, leaves_[index].detach());
  leave(x, index, out);
  return out;
}

/// out + scale (x A^T) B^T, in the rows of the weight that are the adapter's matrix.
at::Tensor Leaves::with_adapters(const at::Tensor& x, std::size_t weight, at::Tensor out) const {
  for (std::size_t i = 0; i < adapters_.size(); ++i) {
    const Adapter& adapter = adapters_[i];
    if (adapter.weight != weight) continue;
    const std::size_t a = weights_.size() + 2 * i;
    const at::Tensor made = apply_linear(apply_linear(x, leaves_[a]), leaves_[a + 1]) * adapter.scale;
    const i64 after = out.size(1) - adapter.begin - adapter.rows;
    out = out + (adapter.rows == out.size(1) ? made : at::constant_pad_nd(made, {adapter.begin, after}));
  }
  return out;
}

at::Tensor Leaves::wide_product(const at::Tensor& x, Weight weight, at::ScalarType wide,
                                const RouterJitter& jitter) const {
  const std::size_t index = position_of(weight);
  const bool leaves = left_ != nullptr && trains_;
  const at::Tensor values = leaves ? leaves_[index].detach() : leaves_[index];
  at::Tensor out =
      jitter.on() ? apply_jittered_linear(x, values, wide, jitter) : apply_wide_linear(x, values, wide);
  if (leaves) leave(x, index, out, jitter);
  return out;
}

void add_left_(const at::Tensor& sum, const LeftProduct& left) {
  const at::Tensor x = left.jitter.on() ? jittered(left.x, left.jitter, left.dout.scalar_type()) : left.x;
  add_weight_gradient_(sum, left.dout, x);
}

void Leaves::leave(const at::Tensor& x, std::size_t weight, const at::Tensor& out,
                   const RouterJitter& jitter) const {
  auto left = std::make_shared<LeftProduct>(LeftProduct{weight, x.detach(), jitter});
  out.register_hook([left](const at::Tensor& dout) {
    left->dout = dout;
    if (!left->sum.defined()) return;
    add_left_(left->sum, *left);
    left->dout.reset();
    left->x.reset();
  });
  left_->push_back(std::move(left));
}

namespace {

/// Of the positions of so many rows.
RopeTable table_of(const ModelConfig& model, const Sequences& sequences, i64 rows,
                   const at::TensorOptions& options) {
  const RopeTable all = rope_table(sequences.seq_len, rope_angles(model, sequences.seq_len), options);
  if (sequences.first + rows <= sequences.seq_len)
    return {all.cos.narrow(0, sequences.first, rows), all.sin.narrow(0, sequences.first, rows)};
  const at::Tensor positions =
      at::arange(sequences.first, sequences.first + rows, all.cos.options().dtype(at::kLong))
          .remainder_(sequences.seq_len);
  return {all.cos.index_select(0, positions), all.sin.index_select(0, positions)};
}

/// [.., heads, *] for each query head of a run the key-value head that it needs.
at::Tensor for_each_query(const at::Tensor& x, i64 first_head, i64 num_heads, i64 of_group) {
  const at::Tensor groups =
      at::arange(first_head, first_head + num_heads, x.options().dtype(at::kLong)).floor_divide_(of_group);
  return x.index_select(2, groups - first_head / of_group);
}

}  // namespace

Heads projected_heads(const ModelConfig& model, i64 layer, const Leaves& leaves, const at::Tensor& normed_TH,
                      const Sequences& sequences) {
  const i64 rows = normed_TH.size(0);
  const RopeTable table = table_of(model, sequences, rows, normed_TH.options());
  if (model.attention == AttentionKind::kMla) return mla_heads(model, leaves, normed_TH, rows, table);
  return gqa_heads(model, leaves, project(model, leaves, normed_TH), head_shape(model, layer, rows), table);
}

Heads projected_latents(const ModelConfig& model, const Leaves& leaves, const at::Tensor& normed_TH,
                        const Sequences& sequences) {
  const i64 rows = normed_TH.size(0);
  return mla_latents(model, leaves, normed_TH, rows, table_of(model, sequences, rows, normed_TH.options()));
}

Heads heads_of_latents(const ModelConfig& model, const Heads& latents, const at::Tensor& kv_TA) {
  std::vector<i64> shape = latents.q.sizes().vec();  // [B, S, heads, *]
  shape.back() = model.qk_nope_dim + model.v_dim;
  const auto kv = kv_TA.view(shape).split_with_sizes({model.qk_nope_dim, model.v_dim}, -1);
  shape.back() = model.qk_rope_dim;  // one turned key serves all heads
  return {latents.q, at::cat({kv[0], latents.k.expand(shape)}, -1), kv[1]};
}

at::Tensor attention_of_heads(const ModelConfig& model, i64 layer, const Heads& heads, const SomeHeads& which,
                              const Sequences& sequences) {
  const i64 first_head = which.first;
  const i64 num_heads = heads.q.size(2), of_group = model.num_heads / model.num_kv_heads;
  const auto whole = [&](const at::Tensor& x) {
    return x.view({-1, sequences.seq_len, x.size(2), x.size(3)});
  };
  const bool one_group = heads.k.size(2) == 1;
  const bool whole_groups = first_head % of_group == 0 && num_heads % of_group == 0;
  const auto shared = [&](const at::Tensor& x) {
    return one_group || whole_groups ? x : for_each_query(x, first_head, num_heads, of_group);
  };
  const bool latent = model.attention == AttentionKind::kMla;
  const AttentionHow how{latent ? score_scale(model) : head_shape(model, layer, sequences).scale(),
                         latent ? 0 : model.window_of(layer), sequences.documents, which.sinks};
  return causal_attention(whole(heads.q), whole(shared(heads.k)), whole(shared(heads.v)), how)
      .reshape({heads.q.size(1), num_heads * heads.v.size(3)});
}

at::Tensor attention_output(const ModelConfig& model, const Leaves& leaves, const at::Tensor& context_TA) {
  const at::Tensor out = leaves.product(context_TA, Weight::kO);
  return model.output_bias ? out + leaves[Weight::kOBias] : out;
}

at::Tensor self_attention(const ModelConfig& model, i64 layer, const Leaves& leaves,
                          const at::Tensor& normed_TH, const Sequences& sequences) {
  return model.attention == AttentionKind::kMla ? mla(model, leaves, normed_TH, sequences)
                                                : gqa(model, layer, leaves, normed_TH, sequences);
}

namespace {

struct StandInFunction : torch::autograd::Function<StandInFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) {
    return at::zeros({}, x.options()).expand(x.sizes());
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 const torch::autograd::variable_list& grads) {
    return {grads[0]};
  }
};

}  // namespace

at::Tensor stand_in(const at::Tensor& x) { return StandInFunction::apply(x); }

KvCache make_kv_cache(const ModelConfig& model, i64 capacity, const at::TensorOptions& options) {
  const i64 heads = model.attention == AttentionKind::kMla ? model.num_heads : model.num_kv_heads;
  KvCache out;
  out.keys = at::empty({1, capacity, heads, model.head_dim}, options);
  out.values = at::empty({1, capacity, heads, model.value_dim()}, options);
  out.rope = rope_table(capacity, rope_angles(model, capacity), options);
  return out;
}

at::Tensor decode_attention(const ModelConfig& model, i64 layer, const Leaves& leaves,
                            const at::Tensor& normed_TH, KvCache& cache) {
  const i64 first = cache.size, count = normed_TH.size(0);
  HM_CHECK(first + count <= cache.capacity(), "{} tokens, room for {}", first + count, cache.capacity());
  const RopeTable table{cache.rope.cos.narrow(0, first, count), cache.rope.sin.narrow(0, first, count)};
  const bool latent = model.attention == AttentionKind::kMla;
  const HeadShape shape = head_shape(model, layer, leaves, count);
  const Heads heads = latent ? mla_heads(model, leaves, normed_TH, count, table)
                             : gqa_heads(model, leaves, project(model, leaves, normed_TH), shape, table);
  cache.keys.narrow(1, first, count).copy_(heads.k);
  cache.values.narrow(1, first, count).copy_(heads.v);
  cache.size += count;
  const AttentionHow how{
      latent ? score_scale(model) : shape.scale(), latent ? 0 : shape.window, {}, shape.sinks};
  const at::Tensor out = cached_attention(heads.q, cache.keys.narrow(1, 0, cache.size),
                                          cache.values.narrow(1, 0, cache.size), how);
  return attention_output(model, leaves, out.reshape({count, -1}));
}

}  // namespace hetermoe
