#pragma once
#include <gtest/gtest.h>

#include "hetermoe/model/model_config.h"

// One small model per family, with every feature of the family switched on.
namespace hetermoe::testing {

inline ModelConfig tiny_mixtral() {
  ModelConfig m;
  m.name = m.model_type = "mixtral";
  m.vocab = 37, m.hidden = 16, m.num_layers = 2;
  m.num_heads = 4, m.num_kv_heads = 2, m.head_dim = 4;
  m.num_experts = 4, m.top_k = 2, m.expert_hidden = 12;
  m.dense_layer = {false, false};
  m.aux_loss_coef = 0.02;
  return m;
}

inline ModelConfig tiny_qwen3() {
  ModelConfig m = tiny_mixtral();
  m.name = m.model_type = "qwen3_moe";
  m.head_dim = 6;  // not hidden / heads
  m.qk_norm = QkNorm::kPerHead;
  m.num_layers = 3, m.dense_layer = {false, true, false}, m.dense_hidden = 20;
  m.num_experts = 6, m.top_k = 3;
  m.tie_embeddings = true;
  return m;
}

inline ModelConfig tiny_olmoe() {
  ModelConfig m = tiny_mixtral();
  m.name = m.model_type = "olmoe";
  m.num_kv_heads = 4;
  m.qk_norm = QkNorm::kWhole;
  m.clip_qkv = 1.5;
  m.normalize_top_k = false;
  return m;
}

inline ModelConfig tiny_deepseek_v2() {
  ModelConfig m = tiny_mixtral();
  m.name = m.model_type = "deepseek_v2";
  m.attention = AttentionKind::kMla;
  m.rope_interleaved = true;
  m.kv_lora_rank = 10, m.qk_nope_dim = 6, m.qk_rope_dim = 4, m.v_dim = 8, m.head_dim = 10;
  m.num_layers = 3, m.dense_layer = {true, false, false}, m.dense_hidden = 20;
  m.num_experts = 8, m.top_k = 3, m.num_shared_experts = 2, m.expert_hidden = 6;
  m.normalize_top_k = false, m.routed_scale = 1.5;
  m.group_score = GroupScore::kMax, m.num_expert_groups = 4, m.top_k_groups = 2;
  return m;
}

inline ModelConfig tiny_deepseek_v3() {
  ModelConfig m = tiny_deepseek_v2();
  m.name = m.model_type = "deepseek_v3";
  m.q_lora_rank = 12, m.v_dim = 12;
  m.router_score = RouterScore::kSigmoid;
  m.router_bias = true;
  m.normalize_top_k = true, m.routed_scale = 2.5;
  m.group_score = GroupScore::kTopTwoSum;
  return m;
}

inline std::vector<ModelConfig> tiny_models() {
  return {tiny_mixtral(), tiny_qwen3(), tiny_olmoe(), tiny_deepseek_v2(), tiny_deepseek_v3()};
}

}  // namespace hetermoe::testing
