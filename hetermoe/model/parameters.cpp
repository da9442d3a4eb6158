// The table of tensors under their Hugging Face names. Counts come from op_cost.h instead, so that the two
// check each other in the tests.
#include "hetermoe/model/model_config.h"
#include "hetermoe/model/op_cost.h"

namespace hetermoe {
namespace {

/// Appends the tensors of one layer.
class LayerTable {
 public:
  LayerTable(const ModelConfig& model, i64 layer, std::vector<ParamInfo>& out)
      : m_(model), layer_(layer), prefix_(fmt::format("model.layers.{}.", layer)), out_(out) {}

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
      add_mlp("mlp.", m_.dense_hidden);
    }
  }

 private:
  void add(const std::string& name, std::vector<i64> shape, ExpertId expert = -1, bool buffer = false) {
    out_.push_back({prefix_ + name, std::move(shape), static_cast<i32>(layer_), expert, buffer});
  }

  void add_gqa() {
    add("self_attn.q_proj.weight", {m_.query_width(), m_.hidden});
    add("self_attn.k_proj.weight", {m_.key_width(), m_.hidden});
    add("self_attn.v_proj.weight", {m_.value_width(), m_.hidden});
    add("self_attn.o_proj.weight", {m_.hidden, m_.output_width()});
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

  void add_mlp(const std::string& name, i64 width, ExpertId expert = -1) {
    add(name + "gate_proj.weight", {width, m_.hidden}, expert);
    add(name + "up_proj.weight", {width, m_.hidden}, expert);
    add(name + "down_proj.weight", {m_.hidden, width}, expert);
  }

  void add_moe() {
    const bool mixtral = m_.model_type == "mixtral";
    const std::string block = mixtral ? "block_sparse_moe." : "mlp.";
    add(block + "gate.weight", {m_.num_experts, m_.hidden});
    if (m_.router_bias) add(block + "gate.e_score_correction_bias", {m_.num_experts}, -1, true);
    if (m_.num_shared_experts > 0) add_mlp(block + "shared_experts.", m_.shared_hidden());
    for (i64 e = 0; e < m_.num_experts; ++e) {
      const auto id = static_cast<ExpertId>(e);
      const std::string expert = fmt::format("{}experts.{}.", block, e);
      if (!mixtral) {
        add_mlp(expert, m_.expert_hidden, id);
        continue;
      }
      add(expert + "w1.weight", {m_.expert_hidden, m_.hidden}, id);  // gate
      add(expert + "w3.weight", {m_.expert_hidden, m_.hidden}, id);  // up
      add(expert + "w2.weight", {m_.hidden, m_.expert_hidden}, id);  // down
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
