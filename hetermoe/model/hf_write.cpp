// Writing config.json of Hugging Face transformers: the keys of a family's row.
#include <optional>

#include "hetermoe/base/index.h"
#include "hetermoe/model/family.h"
#include "hetermoe/model/hf_keys.h"
#include "hetermoe/model/hf_rope.h"
#include "hetermoe/model/layer_interval.h"

namespace hetermoe {
namespace {

void write_dense_layers(const ModelConfig& m, const ModelFamily& family, Json& out) {
  i64 num_dense = 0;
  switch (family.dense_layers) {
    case DenseLayers::kNone:
      break;
    case DenseLayers::kFirst:
      while (num_dense < m.num_layers && !m.is_moe(num_dense)) ++num_dense;
      out["first_k_dense_replace"] = num_dense;
      break;
    case DenseLayers::kListed:
      out["decoder_sparse_step"] = 1;
      out["mlp_only_layers"] = Json::array();
      for (i64 l = 0; l < m.num_layers; ++l) {
        if (!m.is_moe(l)) out["mlp_only_layers"].push_back(l);
      }
      break;
    case DenseLayers::kInterval: {
      const std::optional<LayerInterval> layers = moe_interval(m);
      if (!layers)
        fail<ConfigError>(m.name, "has experts in layers that are no regular interval, which {} cannot say",
                          m.model_type);
      out["moe_layer_start_index"] = layers->first;
      out["moe_layer_end_index"] = layers->last;
      out["moe_layer_interval"] = layers->step;
      break;
    }
  }
}

void write_experts(const ModelConfig& m, const ModelFamily& family, Json& out) {
  out[family.experts_keys.front()] = m.num_experts;
  out[family.expert_width_key] = m.expert_hidden;
  if (family.expert_width_key != "intermediate_size")
    out["intermediate_size"] = m.dense_hidden > 0 ? m.dense_hidden : m.expert_hidden;
  write_dense_layers(m, family, out);
  if (!family.shared_experts_key.empty()) out[family.shared_experts_key] = m.num_shared_experts;
  if (!family.shared_width_key.empty()) out[family.shared_width_key] = m.shared_width;
}

void write_router(const ModelConfig& m, const ModelFamily& family, Json& out) {
  if (!family.normalize_key.empty()) out[family.normalize_key] = m.normalize_top_k;
  if (!family.least_weight_sum_key.empty()) out[family.least_weight_sum_key] = m.least_weight_sum;
  if (!family.routed_scale_key.empty()) out[family.routed_scale_key] = m.routed_scale;
  if (family.group_score != GroupScore::kNone) {
    out["n_group"] = m.num_expert_groups;
    out["topk_group"] = m.top_k_groups;
  }
  if (!family.group_method.empty())
    out["topk_method"] = m.num_expert_groups > 1 ? Json(family.group_method) : Json("greedy");
  // Families without this loss have the key where a file asks for it.
  if (!family.aux_loss_key.empty() && (m.aux_loss_coef > 0 || family.aux_loss_coef > 0))
    out[family.aux_loss_key] = m.aux_loss_coef;
  if (!family.aux_loss_switch.empty()) out[family.aux_loss_switch] = m.aux_loss_coef > 0;
  if (m.swiglu_limit > 0) out["swiglu_limit"] = m.swiglu_limit, out["swiglu_alpha"] = m.swiglu_alpha;
}

void write_mla(const ModelConfig& m, const ModelFamily& family, Json& out) {
  out["q_lora_rank"] = m.q_lora_rank == 0 ? Json(nullptr) : Json(m.q_lora_rank);
  out["kv_lora_rank"] = m.kv_lora_rank;
  out["qk_nope_head_dim"] = m.qk_nope_dim;
  out["qk_rope_head_dim"] = m.qk_rope_dim;
  out["v_head_dim"] = m.v_dim;
  if (family.rope_turn == RopeTurn::kByKey) out["rope_interleave"] = m.rope_interleaved;
}

void write_window(const ModelConfig& m, const ModelFamily& family, Json& out) {
  const bool by_number = act_by_number(family.windows);
  if (!by_number && m.sliding_window == 0) return;
  out["sliding_window"] = m.sliding_window > 0 ? Json(m.sliding_window) : Json(nullptr);
  if (!by_number) out["use_sliding_window"] = true;
  if (m.sliding_layer.empty()) return;
  out["layer_types"] = Json::array();
  for (const bool slides : m.sliding_layer)
    out["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
}

void write_gqa(const ModelConfig& m, const ModelFamily& family, Json& out) {
  out["head_dim"] = m.head_dim;
  write_window(m, family, out);
  if (!family.qk_norm_key.empty()) out[family.qk_norm_key] = m.qk_norm != QkNorm::kNone;
  if (!family.clip_key.empty()) out[family.clip_key] = m.clip_qkv > 0 ? Json(m.clip_qkv) : Json(nullptr);
}

void write_trunk(const ModelConfig& m, const ModelFamily& family, Json& out) {
  out["architectures"] = Json::array({family.architecture});
  out["model_type"] = m.model_type;
  out["vocab_size"] = m.vocab;
  out["hidden_size"] = m.hidden;
  out["num_hidden_layers"] = m.num_layers;
  out["num_attention_heads"] = m.num_heads;
  out["num_key_value_heads"] = m.num_kv_heads;
  if (m.num_experts > 0) out[family.top_k_keys.front()] = m.top_k;
  out["max_position_embeddings"] = m.max_positions;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = m.norm_eps;
  write_rope(m, out);
  out["initializer_range"] = m.init_std;
  out["tie_word_embeddings"] = m.tie_embeddings;
  if (!family.qkv_bias_key.empty())
    out[family.qkv_bias_key] = m.qkv_bias;
  else if (!family.qkv_bias)
    out["attention_bias"] = false;
  out["attention_dropout"] = 0.0;
  for (const ExpectedKey& key : family.expected) {
    if (!key.is_list) out[key.key] = key.value;
  }
}

}  // namespace

Json to_hf(const ModelConfig& model) {
  check_trainable(model);
  const ModelFamily* family = find_family(model.model_type);
  HM_CHECK(family != nullptr, "model_type {}", model.model_type);
  Json out;
  write_trunk(model, *family, out);
  if (model.attention == AttentionKind::kMla) {
    write_mla(model, *family, out);
  } else {
    write_gqa(model, *family, out);
  }
  if (model.num_experts == 0) {
    out["intermediate_size"] = model.dense_hidden;
  } else {
    write_experts(model, *family, out);
    write_router(model, *family, out);
  }
  return out;
}

}  // namespace hetermoe
