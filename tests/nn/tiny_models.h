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
  m.num_kv_heads = m.num_heads;
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

inline ModelConfig tiny_llama() {
  ModelConfig m = tiny_mixtral();
  m.name = m.model_type = "llama";
  m.num_layers = 3, m.dense_layer = {true, true, true}, m.dense_hidden = 20;
  m.num_experts = m.top_k = m.expert_hidden = 0;
  m.aux_loss_coef = 0;
  return m;
}

inline ModelConfig tiny_mistral() {
  ModelConfig m = tiny_llama();
  m.name = m.model_type = "mistral";
  m.max_positions = 64, m.sliding_window = 3;
  return m;
}

inline ModelConfig tiny_dense_qwen3() {
  ModelConfig m = tiny_llama();
  m.name = m.model_type = "qwen3";
  m.head_dim = 6;
  m.qk_norm = QkNorm::kPerHead;
  m.tie_embeddings = true;
  m.max_positions = 64, m.sliding_window = 2, m.sliding_layer = {false, true, true};
  return m;
}

/// Without experts.
inline std::vector<ModelConfig> tiny_dense_models() {
  return {tiny_llama(), tiny_mistral(), tiny_dense_qwen3()};
}

/// With rotary embeddings of every scaled kind, and windows.
inline std::vector<ModelConfig> tiny_scaled_models() {
  std::vector<ModelConfig> out;
  const auto add = [&](ModelConfig model, const char* name, RopeScaling scaling) {
    model.name = name, model.rope_scaling = scaling, model.max_positions = 4;
    out.push_back(std::move(model));
  };
  add(tiny_mixtral(), "linear", {.kind = RopeKind::kLinear, .factor = 3});
  add(tiny_mixtral(), "dynamic", {.kind = RopeKind::kDynamic, .factor = 2.5});
  add(tiny_mixtral(), "llama3", {.kind = RopeKind::kLlama3, .factor = 5, .original_positions = 64});
  add(tiny_qwen3(), "yarn", {.kind = RopeKind::kYarn, .factor = 4, .original_positions = 4096});
  add(tiny_deepseek_v3(), "yarn_mscale",
      {.kind = RopeKind::kYarn,
       .factor = 40,
       .original_positions = 4096,
       .mscale = 1,
       .mscale_all_dim = 0.6});
  ModelConfig window = tiny_olmoe();
  window.name = "window", window.max_positions = 64, window.sliding_window = 3;
  out.push_back(window);
  return out;
}

}  // namespace hetermoe::testing
