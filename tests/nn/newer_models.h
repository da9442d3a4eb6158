#pragma once
#include "tests/nn/tiny_models.h"

// Small models of further families, with every feature of the family switched on.
namespace hetermoe::testing {

/// Biases, a shared expert of its own width with a gate, a dense layer.
inline ModelConfig tiny_qwen2_moe() {
  ModelConfig m = tiny_qwen3();
  m.name = m.model_type = "qwen2_moe";
  m.head_dim = 4;
  m.qk_norm = QkNorm::kNone;
  m.qkv_bias = true;
  m.num_shared_experts = 1, m.shared_width = 14, m.shared_gate = true;
  m.normalize_top_k = false;
  m.tie_embeddings = false;
  return m;
}

/// Heads that are turned in part, biases and norms of queries and keys, sigmoid scores.
inline ModelConfig tiny_glm() {
  ModelConfig m = tiny_mixtral();
  m.name = m.model_type = "glm4_moe";
  m.num_layers = 3, m.dense_layer = {true, false, false}, m.dense_hidden = 20;
  m.head_dim = 8, m.rotary_dim = 4;
  m.qkv_bias = true;
  m.qk_norm = QkNorm::kPerHead;
  m.num_shared_experts = 1;
  m.router_score = RouterScore::kSigmoid;
  m.router_bias = true;
  m.routed_scale = 2.5;
  return m;
}

/// Norms over all heads, heads that are turned in part, sigmoid scores.
inline ModelConfig tiny_minimax() {
  ModelConfig m = tiny_mixtral();
  m.name = m.model_type = "minimax_m2";
  m.head_dim = 6, m.rotary_dim = 4;
  m.qk_norm = QkNorm::kWhole;
  m.router_score = RouterScore::kSigmoid;
  m.router_bias = true;
  m.num_experts = 6, m.top_k = 3;
  return m;
}

/// Pairs that turn, a correction bias on softmax scores, experts in every second layer.
inline ModelConfig tiny_ernie() {
  ModelConfig m = tiny_mixtral();
  m.name = m.model_type = "ernie4_5_moe";
  m.num_layers = 4, m.dense_layer = {true, false, true, false}, m.dense_hidden = 20;
  m.rope_interleaved = true;
  m.num_shared_experts = 2;
  m.router_bias = true;
  m.least_weight_sum = 1e-12;
  m.tie_embeddings = true;
  return m;
}

/// Attention sinks, windows in some layers, biases of all matrices, an activation with limits.
inline ModelConfig tiny_gpt_oss() {
  ModelConfig m = tiny_mixtral();
  m.name = m.model_type = "gpt_oss";
  m.expert_hidden = m.hidden / 2;
  m.qkv_bias = m.output_bias = m.attention_sinks = m.expert_bias = m.router_linear_bias = true;
  m.swiglu_limit = 0.5, m.swiglu_alpha = 1.702;
  m.max_positions = 64, m.sliding_window = 2,
  m.sliding_layer.assign(static_cast<std::size_t>(m.num_layers), true);
  m.sliding_layer.back() = false;
  return m;
}

/// Without experts: biases, and windows in some layers.
inline ModelConfig tiny_qwen2() {
  ModelConfig m = tiny_llama();
  m.name = m.model_type = "qwen2";
  m.qkv_bias = true;
  m.max_positions = 64, m.sliding_window = 2, m.sliding_layer = {false, true, true};
  return m;
}

/// Heads that are turned in part without norms before: what the fused kernel of the CPU takes.
inline ModelConfig tiny_plain_glm() {
  ModelConfig m = tiny_glm();
  m.name = "glm4_moe_plain";
  m.qk_norm = QkNorm::kNone;
  return m;
}

inline std::vector<ModelConfig> newer_models() {
  return {tiny_qwen2_moe(), tiny_glm(), tiny_plain_glm(), tiny_minimax(), tiny_ernie(), tiny_gpt_oss()};
}

/// Of all families with experts.
inline std::vector<ModelConfig> models_of_all_families() {
  std::vector<ModelConfig> out = tiny_models();
  for (const ModelConfig& model : newer_models()) out.push_back(model);
  return out;
}

}  // namespace hetermoe::testing
