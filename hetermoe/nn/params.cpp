#include "hetermoe/nn/params.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/model/tensor_names.h"

namespace hetermoe {
namespace {

using Parts = std::vector<StateGroup::Part>;

void add_storage(StateGroup& group, Weight weight, std::vector<i64> shape, const Parts& parts,
                 const StorageOptions& options) {
  group.weights.push_back(weight);
  group.values.push_back(at::zeros(shape, options.values));
  if (options.trainable) group.grads.push_back(at::zeros(shape, options.grads()));
  group.parts.push_back(parts);
}

void add_whole(StateGroup& group, Weight weight, const std::vector<i64>& shape, const std::string& name,
               const StorageOptions& options) {
  add_storage(group, weight, shape, {{name, 0, shape[0]}}, options);
}

void add_gqa(StateGroup& group, const ModelConfig& model, const std::string& prefix,
             const StorageOptions& options) {
  const i64 q_rows = model.num_heads * model.head_dim, kv_rows = model.num_kv_heads * model.head_dim;
  add_storage(group, Weight::kQkv, {q_rows + 2 * kv_rows, model.hidden},
              {{prefix + "q_proj.weight", 0, q_rows},
               {prefix + "k_proj.weight", q_rows, kv_rows},
               {prefix + "v_proj.weight", q_rows + kv_rows, kv_rows}},
              options);
  add_whole(group, Weight::kO, {model.hidden, q_rows}, prefix + "o_proj.weight", options);
  if (model.qkv_bias)
    add_storage(group, Weight::kQkvBias, {q_rows + 2 * kv_rows},
                {{prefix + "q_proj.bias", 0, q_rows},
                 {prefix + "k_proj.bias", q_rows, kv_rows},
                 {prefix + "v_proj.bias", q_rows + kv_rows, kv_rows}},
                options);
  if (model.output_bias) add_whole(group, Weight::kOBias, {model.hidden}, prefix + "o_proj.bias", options);
  if (model.attention_sinks) add_whole(group, Weight::kSinks, {model.num_heads}, prefix + "sinks", options);
  if (model.qk_norm == QkNorm::kNone) return;
  const bool whole = model.qk_norm == QkNorm::kWhole;
  add_whole(group, Weight::kQNorm, {whole ? q_rows : model.head_dim}, prefix + "q_norm.weight", options);
  add_whole(group, Weight::kKNorm, {whole ? kv_rows : model.head_dim}, prefix + "k_norm.weight", options);
}

void add_mla(StateGroup& group, const ModelConfig& model, const std::string& prefix,
             const StorageOptions& options) {
  const i64 q_rows = model.num_heads * (model.qk_nope_dim + model.qk_rope_dim);
  if (model.q_lora_rank == 0) {
    add_whole(group, Weight::kQ, {q_rows, model.hidden}, prefix + "q_proj.weight", options);
  } else {
    add_whole(group, Weight::kQA, {model.q_lora_rank, model.hidden}, prefix + "q_a_proj.weight", options);
    add_whole(group, Weight::kQANorm, {model.q_lora_rank}, prefix + "q_a_layernorm.weight", options);
    add_whole(group, Weight::kQB, {q_rows, model.q_lora_rank}, prefix + "q_b_proj.weight", options);
  }
  add_whole(group, Weight::kKvA, {model.kv_lora_rank + model.qk_rope_dim, model.hidden},
            prefix + "kv_a_proj_with_mqa.weight", options);
  add_whole(group, Weight::kKvANorm, {model.kv_lora_rank}, prefix + "kv_a_layernorm.weight", options);
  add_whole(group, Weight::kKvB, {model.num_heads * (model.qk_nope_dim + model.v_dim), model.kv_lora_rank},
            prefix + "kv_b_proj.weight", options);
  add_whole(group, Weight::kO, {model.hidden, model.num_heads * model.v_dim}, prefix + "o_proj.weight",
            options);
}

void add_mlp(StateGroup& group, i64 hidden, i64 width, const std::string& prefix,
             const StorageOptions& options) {
  add_storage(group, Weight::kMlpGateUp, {2 * width, hidden},
              {{prefix + "gate_proj.weight", 0, width}, {prefix + "up_proj.weight", width, width}}, options);
  add_whole(group, Weight::kMlpDown, {hidden, width}, prefix + "down_proj.weight", options);
}

/// grads: of the first values; the others are frozen.
std::vector<NamedView> zip_views(std::vector<NamedTensor> values, const std::vector<NamedTensor>& grads) {
  std::vector<NamedView> out;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const at::Tensor grad = i < grads.size() ? grads[i].tensor : at::Tensor();
    out.push_back({std::move(values[i].name), std::move(values[i].tensor), grad});
  }
  return out;
}

u64 name_key(u64 seed, const std::string& name) {  // FNV-1a over the name, then mixed with the seed
  u64 hash = 0xCBF29CE484222325ULL;
  for (const char c : name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3ULL;
  return splitmix64(hash ^ splitmix64(seed));
}

double uniform(u64 bits) { return (static_cast<double>(bits >> 11) + 0.5) * 0x1.0p-53; }

/// Standard normal numbers by counter (Box-Muller): number i depends on (key, i) only, whatever the number of
/// threads.
void fill_normal(float* out, i64 count, u64 key, double deviation) {
  at::parallel_for(0, (count + 1) / 2, 4096, [&](i64 begin, i64 end) {
    for (i64 pair = begin; pair < end; ++pair) {
      const u64 counter = 2 * static_cast<u64>(pair);
      const double radius = deviation * std::sqrt(-2 * std::log(uniform(splitmix64(key + counter))));
      const double angle = 2 * std::numbers::pi * uniform(splitmix64(key + counter + 1));
      out[2 * pair] = static_cast<float>(radius * std::cos(angle));
      if (2 * pair + 1 < count) out[2 * pair + 1] = static_cast<float>(radius * std::sin(angle));
    }
  });
}

}  // namespace

i64 StateGroup::find(Weight weight) const {
  const auto it = std::find(weights.begin(), weights.end(), weight);
  return it == weights.end() ? -1 : it - weights.begin();
}

const at::Tensor& StateGroup::value(Weight weight) const {
  if (weight == Weight::kRouterBias) return buffer;
  const i64 index = find(weight);
  HM_CHECK(index >= 0, "state group has no weight {}", static_cast<int>(weight));
  return values[static_cast<std::size_t>(index)];
}

at::Tensor& StateGroup::grad(Weight weight) {
  const i64 index = find(weight);
  HM_CHECK(index >= 0, "state group has no gradient of weight {}", static_cast<int>(weight));
  return grads[static_cast<std::size_t>(index)];
}

at::Tensor StateGroup::grad_at(std::size_t position) const {
  if (position < values.size()) return grads.at(position);
  const std::size_t of_adapter = position - values.size();
  const Adapter& adapter = adapters.at(of_adapter / 2);
  return of_adapter % 2 == 0 ? adapter.a_grad : adapter.b_grad;
}

std::vector<NamedView> StateGroup::views() const {
  std::vector<NamedView> out =
      zip_views(named(values), trainable() ? named(grads) : std::vector<NamedTensor>());
  if (buffer.defined()) out.push_back({buffer_name, buffer, at::Tensor(), true});
  return out;
}

std::vector<NamedTensor> StateGroup::named(const std::vector<at::Tensor>& storages) const {
  HM_CHECK(storages.size() == values.size(), "{} storages, expected {}", storages.size(), values.size());
  std::vector<NamedTensor> out;
  for (std::size_t i = 0; i < storages.size(); ++i) {
    for (const Part& part : parts[i])
      out.push_back({part.name, storages[i].narrow(0, part.begin, part.rows)});
  }
  return out;
}

void StateGroup::zero_grads() {
  for (at::Tensor& grad : grads) grad.zero_();
}

namespace {

/// Adapters of the matrices of a group that are targets.
void add_adapters(StateGroup& group, const StorageOptions& options) {
  if (options.lora == nullptr) return;
  for (std::size_t i = 0; i < group.values.size(); ++i) {
    for (const StateGroup::Part& part : group.parts[i]) {
      if (options.lora->adapts(part.name))
        group.adapters.push_back(make_adapter(*options.lora, i, part.begin, part.rows, part.name,
                                              group.values[i].size(1), 0, options.values, options.grads()));
    }
  }
}

void add_adapters(ExpertSlab& slab, const ModelConfig& model, const StorageOptions& options) {
  if (options.lora == nullptr || slab.experts.empty()) return;
  const std::array<std::string, 3> matrices = expert_matrices(model, slab.layer, slab.experts[0]);
  const i64 width = model.expert_hidden;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    if (!options.lora->adapts(matrices[i])) continue;
    const bool down = i == 2;
    slab.adapters.push_back(make_adapter(
        *options.lora, down ? 1 : 0, i == 1 ? width : 0, down ? model.hidden : width, matrices[i],
        down ? width : model.hidden, slab.num_slots(), options.values, options.grads()));
  }
}

}  // namespace

StateGroup make_embed_state(const ModelConfig& model, const StorageOptions& options) {
  StateGroup group;
  add_whole(group, Weight::kEmbedding, {model.vocab, model.hidden}, "model.embed_tokens.weight", options);
  if (model.tie_embeddings)
    add_whole(group, Weight::kFinalNorm, {model.hidden}, "model.norm.weight", options);
  return group;
}

StateGroup make_head_state(const ModelConfig& model, const StorageOptions& options) {
  HM_CHECK(!model.tie_embeddings, "the head of {} has tied embeddings: its state is the embedding's",
           model.name);
  StateGroup group;
  add_whole(group, Weight::kFinalNorm, {model.hidden}, "model.norm.weight", options);
  add_whole(group, Weight::kLmHead, {model.vocab, model.hidden}, "lm_head.weight", options);
  return group;
}

StateGroup make_attention_state(const ModelConfig& model, i64 layer, const StorageOptions& options) {
  StateGroup group;
  const std::string prefix = layer_prefix(layer);
  add_whole(group, Weight::kInputNorm, {model.hidden}, prefix + "input_layernorm.weight", options);
  if (model.attention == AttentionKind::kMla) {
    add_mla(group, model, prefix + "self_attn.", options);
  } else {
    add_gqa(group, model, prefix + "self_attn.", options);
  }
  add_whole(group, Weight::kPostNorm, {model.hidden}, prefix + "post_attention_layernorm.weight", options);
  if (!model.is_moe(layer)) {
    add_mlp(group, model.hidden, model.dense_hidden, prefix + "mlp.", options);
    add_adapters(group, options);
    return group;
  }
  const std::string router = router_name(model, layer);
  add_whole(group, Weight::kRouter, {model.num_experts, model.hidden}, router, options);
  if (model.router_linear_bias)
    add_whole(group, Weight::kRouterLinearBias, {model.num_experts}, bias_of(router), options);
  if (model.router_bias) {
    group.buffer_name = correction_bias_name(model, layer);
    group.buffer = at::zeros(correction_bias_shape(model),
                             options.values.dtype(accumulate_type(options.values.dtype().toScalarType())));
  }
  if (model.num_shared_experts > 0)
    add_mlp(group, model.hidden, model.shared_hidden(), shared_prefix(model, layer), options);
  if (model.shared_gate)
    add_whole(group, Weight::kSharedGate, {1, model.hidden}, shared_gate_name(model, layer), options);
  add_adapters(group, options);
  return group;
}

at::Tensor matrices_of(const at::Tensor& storage, i64 rows) {
  return storage.size(1) == rows ? storage : storage.narrow(1, 0, rows);
}

at::Tensor biases_of(const at::Tensor& storage, i64 rows) {
  return storage.narrow(1, rows, storage.size(1) - rows).flatten(1).narrow(1, 0, rows);
}

std::vector<NamedTensor> named_experts(const ModelConfig& model, i64 layer, std::span<const ExpertId> experts,
                                       const at::Tensor& gate_up, const at::Tensor& down) {
  const i64 width = down.size(2), hidden = gate_up.size(2);
  std::vector<NamedTensor> out;
  for (std::size_t i = 0; i < experts.size(); ++i) {
    const auto slot = static_cast<i64>(i);
    const std::array<std::string, 3> names = expert_matrices(model, layer, experts[i]);
    out.push_back({names[0], gate_up[slot].narrow(0, 0, width)});
    out.push_back({names[1], gate_up[slot].narrow(0, width, width)});
    out.push_back({names[2], down[slot].narrow(0, 0, hidden)});
    if (!model.expert_bias) continue;
    const at::Tensor of_gate_up = biases_of(gate_up, 2 * width)[slot];
    out.push_back({bias_of(names[0]), of_gate_up.narrow(0, 0, width)});
    out.push_back({bias_of(names[1]), of_gate_up.narrow(0, width, width)});
    out.push_back({bias_of(names[2]), biases_of(down, hidden)[slot]});
  }
  return out;
}

std::vector<NamedTensor> named_adapters(const StateGroup& group, const std::vector<at::Tensor>& storages) {
  HM_CHECK(storages.size() == 2 * group.adapters.size(), "{} storages of {} adapters", storages.size(),
           group.adapters.size());
  std::vector<NamedTensor> out;
  for (std::size_t i = 0; i < group.adapters.size(); ++i) {
    out.push_back({lora_a_name(group.adapters[i].matrix), storages[2 * i]});
    out.push_back({lora_b_name(group.adapters[i].matrix), storages[2 * i + 1]});
  }
  return out;
}

std::vector<NamedTensor> named_adapters(const ModelConfig& model, const ExpertSlab& slab, ExpertId expert,
                                        const std::vector<at::Tensor>& storages, i64 slot) {
  const std::array<std::string, 3> matrices = expert_matrices(model, slab.layer, expert);
  std::vector<NamedTensor> out;
  for (std::size_t i = 0; i < slab.adapters.size(); ++i) {
    const Adapter& adapter = slab.adapters[i];
    const std::string& matrix = matrices[adapter.weight == 1 ? 2 : adapter.begin == 0 ? 0 : 1];
    out.push_back({lora_a_name(matrix), storages[2 * i][slot]});
    out.push_back({lora_b_name(matrix), storages[2 * i + 1][slot]});
  }
  return out;
}

std::vector<NamedView> ExpertSlab::views(const ModelConfig& model) const {
  return zip_views(
      named_experts(model, layer, experts, gate_up, down),
      named_experts(model, layer, std::span(experts).first(static_cast<std::size_t>(num_trainable())),
                    gate_up_grad, down_grad));
}

void ExpertSlab::zero_grads() {
  gate_up_grad.zero_();
  down_grad.zero_();
}

ExpertSlab make_expert_slab(const ModelConfig& model, i64 layer, std::vector<ExpertId> experts,
                            const StorageOptions& options, i64 num_trainable) {
  ExpertSlab slab;
  slab.layer = layer;
  slab.products = options.expert_products;
  slab.experts = std::move(experts);
  slab.slot_of.assign(static_cast<std::size_t>(model.num_experts), -1);
  for (i64 slot = 0; slot < slab.num_slots(); ++slot) {
    i64& entry = slab.slot_of.at(static_cast<std::size_t>(slab.experts[static_cast<std::size_t>(slot)]));
    HM_CHECK(entry == -1, "expert {} of layer {} has two slots", slab.experts[static_cast<std::size_t>(slot)],
             layer);
    entry = slot;
  }
  const i64 width = model.expert_hidden, gate_up_rows = model.gate_up_rows(), down_rows = model.down_rows();
  slab.activation = {model.swiglu_limit, model.swiglu_alpha};
  const i64 num_grads = options.lora != nullptr ? 0 : num_trainable < 0 ? slab.num_slots() : num_trainable;
  slab.gate_up = at::zeros({slab.num_slots(), gate_up_rows, model.hidden}, options.values);
  slab.down = at::zeros({slab.num_slots(), down_rows, width}, options.values);
  slab.gate_up_grad = at::zeros({num_grads, gate_up_rows, model.hidden}, options.grads());
  slab.down_grad = at::zeros({num_grads, down_rows, width}, options.grads());
  add_adapters(slab, model, options);
  return slab;
}

void init_parameters(const std::vector<NamedView>& views, u64 seed) {
  constexpr double kDeviation = 0.02;  // initializer_range of all five families
  for (const NamedView& view : views) {
    const bool adapter = is_adapter(view.name);
    if (view.buffer || view.name.ends_with(".bias") || view.name.ends_with(".sinks") ||
        (adapter && !is_lora_a(view.name))) {
      view.value.zero_();
    } else if (view.value.dim() == 1) {
      view.value.fill_(1);
    } else {
      at::Tensor drawn = at::empty(view.value.sizes(), at::kFloat);
      const double deviation = adapter ? 1 / std::sqrt(static_cast<double>(drawn.size(1))) : kDeviation;
      fill_normal(drawn.mutable_data_ptr<float>(), drawn.numel(), name_key(seed, view.name), deviation);
      view.value.copy_(drawn);
    }
  }
}

at::ScalarType accumulate_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

}  // namespace hetermoe
