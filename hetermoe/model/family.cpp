#include "hetermoe/model/family.h"

#include <algorithm>

// Facts of the configuration and modelling classes of transformers 4 and 5 (configuration_<family>.py,
// modeling_<family>.py), and of the configuration class that released Kimi K2 folders bring along.
namespace hetermoe {
namespace {

const TensorNames kMixtralNames = {.block = "block_sparse_moe.", .gate = "w1", .up = "w3", .down = "w2"};

ModelFamily mixtral() {
  return {.model_type = "mixtral",
          .architecture = "MixtralForCausalLM",
          .max_positions = 131072,
          .norm_eps = 1e-5,
          .rope_theta = 1e6,
          .num_kv_heads = 8,
          .windows = WindowKeys::kNumber,
          .experts_keys = {"num_local_experts", "num_experts"},
          .expert_width_key = "intermediate_size",
          .aux_loss_coef = 0.001,
          .names = kMixtralNames};
}

ModelFamily qwen3_moe() {
  return {.model_type = "qwen3_moe",
          .architecture = "Qwen3MoeForCausalLM",
          .max_positions = 32768,
          .num_kv_heads = 4,
          .qk_norm = QkNorm::kPerHead,
          .windows = WindowKeys::kSwitch,
          .dense_layers = DenseLayers::kListed,
          .normalize_top_k = false,
          .normalize_key = "norm_topk_prob",
          .aux_loss_coef = 0.001};
}

ModelFamily olmoe() {
  return {.model_type = "olmoe",
          .architecture = "OlmoeForCausalLM",
          .max_positions = 4096,
          .norm_eps = 1e-5,
          .qk_norm = QkNorm::kWhole,
          .clip_key = "clip_qkv",
          .expert_width_key = "intermediate_size",
          .normalize_top_k = false,
          .normalize_key = "norm_topk_prob",
          .aux_loss_coef = 0.01};
}

/// What V2 and V3 share.
ModelFamily deepseek(const std::string& model_type, const std::string& architecture) {
  return {.model_type = model_type,
          .architecture = architecture,
          .attention = AttentionKind::kMla,
          .experts_keys = {"n_routed_experts", "num_experts", "num_local_experts"},
          .dense_layers = DenseLayers::kFirst,
          .shared_experts_key = "n_shared_experts",
          .routed_scale_key = "routed_scaling_factor"};
}

ModelFamily deepseek_v2() {
  ModelFamily out = deepseek("deepseek_v2", "DeepseekV2ForCausalLM");
  out.max_positions = 2048;
  out.rope_turn = RopeTurn::kPairs;  // always, in complex form
  out.shared_experts = 2;
  out.normalize_top_k = false;
  out.group_score = GroupScore::kMax, out.group_method = "group_limited_greedy";
  // DeepSeek's own code divides by the sum and then does not scale; the class in transformers ignores the
  // key.
  out.expected = {{"norm_topk_prob", false}, {"scoring_func", "softmax"}, {"moe_layer_freq", 1}};
  return out;
}

ModelFamily deepseek_v3() {
  ModelFamily out = deepseek("deepseek_v3", "DeepseekV3ForCausalLM");
  out.max_positions = 4096;
  out.rope_turn = RopeTurn::kByKey;
  out.first_dense = 3;
  out.shared_experts = 1;
  out.router_score = RouterScore::kSigmoid, out.router_bias = true;
  out.normalize_key = "norm_topk_prob";
  out.routed_scale = 2.5;
  out.group_score = GroupScore::kTopTwoSum, out.expert_groups = 8, out.kept_groups = 4;
  out.expected = {{"scoring_func", "sigmoid"}, {"topk_method", "noaux_tc"}, {"moe_layer_freq", 1}};
  return out;
}

ModelFamily kimi_k2() {
  ModelFamily out = deepseek_v3();
  out.model_type = "kimi_k2";
  return out;
}

ModelFamily llama() {
  return {.model_type = "llama",
          .architecture = "LlamaForCausalLM",
          .has_experts = false,
          .max_positions = 2048,
          .sparse_type = "mixtral"};
}

ModelFamily qwen3() {
  return {.model_type = "qwen3",
          .architecture = "Qwen3ForCausalLM",
          .has_experts = false,
          .max_positions = 32768,
          .num_kv_heads = 32,
          .head_dim = 128,
          .qk_norm = QkNorm::kPerHead,
          .windows = WindowKeys::kSwitchAndLayer,
          .window = 4096,
          .sparse_type = "qwen3_moe"};
}

ModelFamily mistral() {
  return {.model_type = "mistral",
          .architecture = "MistralForCausalLM",
          .has_experts = false,
          .max_positions = 131072,
          .num_kv_heads = 8,
          .windows = WindowKeys::kNumber,
          .window = 4096,
          .sparse_type = "mixtral"};
}

ModelFamily qwen2() {
  return {.model_type = "qwen2",
          .architecture = "Qwen2ForCausalLM",
          .has_experts = false,
          .max_positions = 32768,
          .num_kv_heads = 32,
          .qkv_bias = true,
          .windows = WindowKeys::kSwitchAndLayer,
          .window = 4096};
}

ModelFamily qwen2_moe() {
  return {.model_type = "qwen2_moe",
          .architecture = "Qwen2MoeForCausalLM",
          .max_positions = 32768,
          .num_kv_heads = 16,
          .qkv_bias = true,
          .qkv_bias_key = "qkv_bias",
          .dense_layers = DenseLayers::kListed,
          .shared_experts = 1,
          .shared_width = 5632,
          .shared_width_key = "shared_expert_intermediate_size",
          .shared_gate = true,
          .normalize_top_k = false,
          .normalize_key = "norm_topk_prob",
          .aux_loss_coef = 0.001,
          .expected = {{"use_sliding_window", false}},
          .names = {.shared = "shared_expert."}};
}

ModelFamily glm4_moe() {
  return {.model_type = "glm4_moe",
          .architecture = "Glm4MoeForCausalLM",
          .max_positions = 131072,
          .norm_eps = 1e-5,
          .num_kv_heads = 8,
          .rotary_share = 0.5,
          .qk_norm = QkNorm::kPerHead,
          .qk_norm_key = "use_qk_norm",
          .qkv_bias_key = "attention_bias",
          .experts_keys = {"n_routed_experts", "num_local_experts", "num_experts"},
          .dense_layers = DenseLayers::kFirst,
          .first_dense = 1,
          .shared_experts = 1,
          .shared_experts_key = "n_shared_experts",
          .router_score = RouterScore::kSigmoid,
          .router_bias = true,
          .normalize_key = "norm_topk_prob",
          .routed_scale_key = "routed_scaling_factor",
          .group_score = GroupScore::kTopTwoSum};
}

/// The loss that output_router_logits would add counts the best experts before the correction bias, which
/// are not those that are chosen.
const ExpectedKey kNoLossOfLogits = {"output_router_logits", false};

ModelFamily minimax_m2() {
  ModelFamily out = {.model_type = "minimax_m2",
                     .architecture = "MiniMaxM2ForCausalLM",
                     .max_positions = 196608,
                     .rope_theta = 5e6,
                     .num_kv_heads = 8,
                     .head_dim = 128,
                     .rotary_share = 1,
                     .rotary_dim_key = "rotary_dim",
                     .qk_norm = QkNorm::kWhole,
                     .experts_keys = {"num_local_experts", "num_experts"},
                     .expert_width_key = "intermediate_size",
                     .router_score = RouterScore::kSigmoid,
                     .router_bias = true,
                     .aux_loss_key = {},
                     .names = kMixtralNames};
  out.names.correction_bias = "e_score_correction_bias";
  out.expected = {kNoLossOfLogits,
                  {"scoring_func", "sigmoid"},
                  {"use_routing_bias", true},
                  {"use_qk_norm", true},
                  {"qk_norm_type", "per_layer"},
                  {"shared_intermediate_size", 0},
                  {"attn_type_list", 1, true}};
  out.ignored_tensors = ".mtp.";
  return out;
}

ModelFamily ernie4_5_moe() {
  return {.model_type = "ernie4_5_moe",
          .architecture = "Ernie4_5_MoeForCausalLM",
          .max_positions = 131072,
          .norm_eps = 1e-5,
          .rope_theta = 5e5,
          .num_kv_heads = 4,
          .tie_embeddings = true,
          .rope_turn = RopeTurn::kPairs,
          .experts_keys = {"moe_num_experts", "num_experts", "num_local_experts"},
          .top_k_keys = {"moe_k", "num_experts_per_tok"},
          .dense_layers = DenseLayers::kInterval,
          .first_dense = 1,
          .shared_experts = 2,
          .shared_experts_key = "moe_num_shared_experts",
          .router_bias = true,
          .least_weight_sum = 1e-12,
          .least_weight_sum_key = "moe_norm_min",
          .aux_loss_key = {},
          .expected = {kNoLossOfLogits, {"use_bias", false}},
          .names = {.correction_bias = "moe_statics.e_score_correction_bias",
                    .fused_correction_bias = "gate.moe_statics.e_score_correction_bias",
                    .correction_bias_is_row = true},
          .ignored_tensors = "mtp"};
}

ModelFamily gpt_oss() {
  return {.model_type = "gpt_oss",
          .architecture = "GptOssForCausalLM",
          .max_positions = 131072,
          .norm_eps = 1e-5,
          .rope_theta = 150000,
          .num_kv_heads = 8,
          .head_dim = 64,
          .qkv_bias = true,
          .qkv_bias_key = "attention_bias",
          .output_bias = true,
          .attention_sinks = true,
          .windows = WindowKeys::kNumberAndLayer,
          .window = 128,
          .experts_keys = {"num_local_experts", "num_experts"},
          .top_k_keys = {"num_experts_per_tok", "experts_per_token"},
          .expert_width_key = "intermediate_size",
          .expert_bias = true,
          .swiglu_limit = 7,
          .swiglu_alpha = 1.702,
          .router_linear_bias = true,
          .aux_loss_coef = 0.001,
          .aux_loss_switch = "output_router_logits",
          .names = {.router = "router"},
          .interleaved_experts = true};
}

}  // namespace

const std::vector<ModelFamily>& families() {
  static const std::vector<ModelFamily> all = {
      mixtral(), qwen3_moe(), olmoe(),     deepseek_v2(), deepseek_v3(), llama(),        qwen3(),  mistral(),
      kimi_k2(), qwen2(),     qwen2_moe(), glm4_moe(),    minimax_m2(),  ernie4_5_moe(), gpt_oss()};
  return all;
}

const ModelFamily* find_family(const std::string& model_type) {
  const auto found = std::find_if(families().begin(), families().end(),
                                  [&](const ModelFamily& row) { return row.model_type == model_type; });
  return found == families().end() ? nullptr : &*found;
}

const ModelFamily& family_of(const ModelConfig& model) {
  static const ModelFamily usual;
  const ModelFamily* found = find_family(model.model_type);
  return found != nullptr ? *found : usual;
}

const std::vector<std::string>& known_model_types() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const ModelFamily& family : families()) all.push_back(family.model_type);
    return all;
  }();
  return names;
}

}  // namespace hetermoe
