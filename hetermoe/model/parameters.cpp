// The table of tensors under their Hugging Face names. Counts come from op_cost.h instead, so that the two
// check each other in the tests.
#include "hetermoe/model/model_config.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/model/tensor_names.h"

namespace hetermoe {
namespace {

/// Appends the tensors of one layer.
class LayerTable {
 public:
  LayerTable(const ModelConfig& model, i64 layer, std::vector<ParamInfo>& out)
      : m_(model), layer_(layer), prefix_(layer_prefix(layer)), out_(out) {}

  void add_all() {
    add("input_layernorm.weight", {m_.hidden});
    if (m_.attention == AttentionKind::kMla) {
      add_mla();
    } else {
      add_gqa();
    }
    add("post_attention_layernorm.weight", {m_.hidden});
    if (m_.is_moe(layer_)) {
      add_moe();
    } else {
      add_mlp(prefix_ + "mlp.", m_.dense_hidden);
    }
  }

 private:
  void add(const std::string& name, std::vector<i64> shape) { add_named(prefix_ + name, std::move(shape)); }
  void add_named(const std::string& name, std::vector<i64> shape, ExpertId expert = -1, bool buffer = false) {
    out_.push_back({name, std::move(shape), static_cast<i32>(layer_), expert, buffer});
  }

  void add_gqa() {
    add("self_attn.q_proj.weight", {m_.query_width(), m_.hidden});
    add("self_attn.k_proj.weight", {m_.key_width(), m_.hidden});
    add("self_attn.v_proj.weight", {m_.value_width(), m_.hidden});
    add("self_attn.o_proj.weight", {m_.hidden, m_.output_width()});
    if (m_.qkv_bias) {
      add("self_attn.q_proj.bias", {m_.query_width()});
      add("self_attn.k_proj.bias", {m_.key_width()});
      add("self_attn.v_proj.bias", {m_.value_width()});
    }
    if (m_.output_bias) add("self_attn.o_proj.bias", {m_.hidden});
    if (m_.attention_sinks) add("self_attn.sinks", {m_.num_heads});
    if (m_.qk_norm == QkNorm::kNone) return;
    const bool per_head = m_.qk_norm == QkNorm::kPerHead;
    add("self_attn.q_norm.weight", {per_head ? m_.head_dim : m_.query_width()});
    add("self_attn.k_norm.weight", {per_head ? m_.head_dim : m_.key_width()});
  }

  void add_mla() {
    if (m_.q_lora_rank == 0) {
      add("self_attn.q_proj.weight", {m_.query_width(), m_.hidden});
    } else {
      add("self_attn.q_a_proj.weight", {m_.q_lora_rank, m_.hidden});
      add("self_attn.q_a_layernorm.weight", {m_.q_lora_rank});
      add("self_attn.q_b_proj.weight", {m_.query_width(), m_.q_lora_rank});
    }
    add("self_attn.kv_a_proj_with_mqa.weight", {m_.kv_lora_rank + m_.qk_rope_dim, m_.hidden});
    add("self_attn.kv_a_layernorm.weight", {m_.kv_lora_rank});
    add("self_attn.kv_b_proj.weight", {m_.num_heads * (m_.qk_nope_dim + m_.v_dim), m_.kv_lora_rank});
    add("self_attn.o_proj.weight", {m_.hidden, m_.output_width()});
  }

  void add_mlp(const std::string& name, i64 width) {
    add_named(name + "gate_proj.weight", {width, m_.hidden});
    add_named(name + "up_proj.weight", {width, m_.hidden});
    add_named(name + "down_proj.weight", {m_.hidden, width});
  }

  void add_moe() {
    const std::string router = router_name(m_, layer_);
    add_named(router, {m_.num_experts, m_.hidden});
    if (m_.router_linear_bias) add_named(bias_of(router), {m_.num_experts});
    if (m_.router_bias)
      add_named(correction_bias_name(m_, layer_), correction_bias_shape(m_), -1, /*buffer=*/true);
    if (m_.num_shared_experts > 0) add_mlp(shared_prefix(m_, layer_), m_.shared_hidden());
    if (m_.shared_gate) add_named(shared_gate_name(m_, layer_), {1, m_.hidden});
    for (ExpertId e = 0; e < m_.num_experts; ++e) {
      const auto [gate, up, down] = expert_matrices(m_, layer_, e);
      add_named(gate, {m_.expert_hidden, m_.hidden}, e);
      add_named(up, {m_.expert_hidden, m_.hidden}, e);
      add_named(down, {m_.hidden, m_.expert_hidden}, e);
      if (!m_.expert_bias) continue;
      add_named(bias_of(gate), {m_.expert_hidden}, e);
      add_named(bias_of(up), {m_.expert_hidden}, e);
      add_named(bias_of(down), {m_.hidden}, e);
    }
  }

  const ModelConfig& m_;
  i64 layer_;
  std::string prefix_;
  std::vector<ParamInfo>& out_;
};

}  // namespace

i64 ParamInfo::numel() const {
  i64 product = 1;
  for (i64 size : shape) product *= size;
  return product;
}

std::vector<ParamInfo> parameters(const ModelConfig& model) {
  std::vector<ParamInfo> out;
  out.push_back({"model.embed_tokens.weight", {model.vocab, model.hidden}});
  for (i64 l = 0; l < model.num_layers; ++l) LayerTable(model, l, out).add_all();
  out.push_back({"model.norm.weight", {model.hidden}});
  if (!model.tie_embeddings) out.push_back({"lm_head.weight", {model.vocab, model.hidden}});
  return out;
}

ParamCounts count_parameters(const ModelConfig& model) {
  ParamCounts out;
  out.embedding = model.vocab * model.hidden;
  out.head = model.hidden + (model.tie_embeddings ? 0 : out.embedding);
  out.expert = expert_weights(model);
  out.total = out.active = out.embedding + out.head;
  for (i64 l = 0; l < model.num_layers; ++l) {
    const i64 part = layer_weights(model, l).attention_part();
    out.attention_part.push_back(part);
    out.total += part + (model.is_moe(l) ? model.num_experts * out.expert : 0);
    out.active += part + (model.is_moe(l) ? model.top_k * out.expert : 0);
  }
  return out;
}

}  // namespace hetermoe
