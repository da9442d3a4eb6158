#include "hetermoe/model/family.h"

#include <gtest/gtest.h>

#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/model/growth.h"
#include "hetermoe/model/layer_interval.h"
#include "hetermoe/model/lora.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/model/sparse.h"
#include "tests/model/configs.h"

// Rows of the table of families, and the families that have no tiny-*.json of their own.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

fs::path parity() { return fs::path(HM_SOURCE_DIR) / "tests/data/parity"; }
Json made(const std::string& name) { return read_json(parity() / name / "config.json"); }

/// The config.json of every folder that transformers made.
std::vector<std::pair<std::string, Json>> all_made() {
  std::vector<std::pair<std::string, Json>> out;
  for (const fs::directory_entry& folder : fs::directory_iterator(parity()))
    out.emplace_back(folder.path().filename().string(), read_json(folder.path() / "config.json"));
  return out;
}

TEST(Families, EachHasARowThatModelsOfItsTypeFind) {
  std::set<std::string> types;
  for (const ModelFamily& row : families()) {
    EXPECT_TRUE(types.insert(row.model_type).second) << row.model_type;
    EXPECT_FALSE(row.architecture.empty()) << row.model_type;
    ModelConfig model;
    model.model_type = row.model_type;
    EXPECT_EQ(&family_of(model), &row);
    EXPECT_EQ(find_family(row.model_type), &row);
    if (!row.sparse_type.empty()) {
      EXPECT_NE(find_family(row.sparse_type), nullptr);
    }
  }
  EXPECT_EQ(find_family("granite"), nullptr);
}

TEST(Families, EveryFamilyHasAFolderThatTransformersMade) {
  std::set<std::string> made_types;
  for (const auto& [name, config] : all_made()) made_types.insert(config.at("model_type"));
  for (const ModelFamily& row : families()) EXPECT_EQ(made_types.count(row.model_type), 1u) << row.model_type;
}

TEST(Families, WhatTransformersWroteRoundTrips) {
  for (const auto& [name, config] : all_made()) {
    const ModelConfig model = read(config);
    EXPECT_TRUE(model.unsupported.empty()) << name;
    EXPECT_TRUE(model.assumed.empty()) << name;
    EXPECT_EQ(read(to_hf(model)), model) << name;
    EXPECT_EQ(any_model_from_hf(config, "config.json"), model) << name;
  }
}

TEST(Families, CountsAndFlopsFollowFromTheTableOfTensors) {
  for (const auto& [name, config] : all_made()) {
    const ModelConfig model = read(config);
    i64 total = 0;
    double matrices = 0;
    for (const ParamInfo& info : parameters(model)) {
      total += info.numel();
      const bool counts = info.layer >= 0 && info.shape.size() == 2 && !info.buffer;
      const double share = info.expert >= 0 ? real(model.top_k) / real(model.num_experts) : 1;
      if (counts) matrices += 2 * share * real(info.numel());
    }
    EXPECT_EQ(count_parameters(model).total, total) << name;
    double flops = 0;
    for (i64 l = 0; l < model.num_layers; ++l) {
      flops += attention_part_flops(model, l, 16) - score_flops(model, l, 16) / 16;
      if (model.is_moe(l)) flops += real(model.top_k) * expert_flops(model);
    }
    EXPECT_NEAR(flops, matrices, 1e-9 * matrices) << name;
  }
}

TEST(Families, AdaptersAreForMatricesThatAreNoGate) {
  for (const auto& [name, config] : all_made()) {
    for (const ParamInfo& info : parameters(read(config))) {
      const bool projection = info.name.find("_proj") != std::string::npos ||
                              (info.expert >= 0 && info.name.find(".w") != std::string::npos);
      EXPECT_EQ(can_have_adapter(info), projection && info.name.ends_with(".weight"))
          << name << " " << info.name;
    }
  }
}

/// Totals as the makers of the models publish them, in billions of parameters.
TEST(Families, ReleasedModelsHaveTheParametersThatTheirMakersSay) {
  const std::vector<std::tuple<const char*, double, double>> published = {{"kimi-k2", 1026, 5},
                                                                          {"glm-4.5-air", 106, 1},
                                                                          {"minimax-m2", 229, 1.5},
                                                                          {"ernie-4.5-21b-a3b", 21.8, 0.1},
                                                                          {"gpt-oss-20b", 20.9, 0.05},
                                                                          {"gpt-oss-120b", 116.8, 0.05},
                                                                          {"qwen1.5-moe-a2.7b", 14.3, 0.05},
                                                                          {"qwen2.5-7b", 7.61, 0.01}};
  for (const auto& [name, total, near] : published)
    EXPECT_NEAR(static_cast<double>(count_parameters(load_model(name)).total) / 1e9, total, near) << name;
}

// --- what is read ---

TEST(HfConfigQwen2, BiasesAndTheGatedSharedExpert) {
  EXPECT_TRUE(read(made("qwen2")).qkv_bias);
  const ModelConfig moe = read(made("qwen2_moe"));
  EXPECT_TRUE(moe.qkv_bias);
  EXPECT_TRUE(moe.shared_gate);
  EXPECT_EQ(moe.shared_hidden(), 14);
  EXPECT_EQ(moe.expert_hidden, 10);
  EXPECT_FALSE(moe.normalize_top_k);
  EXPECT_EQ(moe.dense_layer, (std::vector<bool>{false, true, false}));
  EXPECT_TRUE(read(without(made("qwen2_moe_other"), "qkv_bias")).qkv_bias);
  EXPECT_EQ(read(without(made("qwen2_moe"), "shared_expert_intermediate_size")).shared_hidden(), 5632);
  const ModelConfig window = read(made("qwen2_window"));
  EXPECT_EQ(window.window_of(0), 0);
  EXPECT_EQ(window.window_of(1), 4);
}

TEST(HfConfigGptOss, WindowsSinksBiasesAndLimits) {
  const Json config = made("gpt_oss");
  const ModelConfig model = read(config);
  EXPECT_TRUE(model.attention_sinks && model.qkv_bias && model.output_bias && model.expert_bias &&
              model.router_linear_bias);
  EXPECT_EQ(model.sliding_layer, (std::vector<bool>{true, false, true}));
  EXPECT_EQ(read(without(config, "layer_types")), model);  // every second layer, from the first on
  EXPECT_EQ(read(without(config, "swiglu_limit")).swiglu_limit, 7);
  EXPECT_EQ(read(without(config, "attention_bias")), model);
  const ModelConfig plain = read(with(config, "attention_bias", false));
  EXPECT_FALSE(plain.qkv_bias || plain.output_bias);
  EXPECT_TRUE(plain.expert_bias);
  // Released files have 0.9 and ask for no logits of routers: transformers adds no loss then.
  EXPECT_EQ(model.aux_loss_coef, 0.01);
  EXPECT_EQ(read(without(config, "output_router_logits")).aux_loss_coef, 0);
  EXPECT_EQ(load_model("gpt-oss-20b").aux_loss_coef, 0);
}

TEST(HfConfigGptOss, BiasesThatFillNoRowsAreRefusedForTraining) {
  const ModelConfig model = read(with(made("gpt_oss"), "intermediate_size", 12));
  ASSERT_EQ(model.unsupported.size(), 1u);
  EXPECT_EQ(
      model.unsupported[0],
      "intermediate_size: got 12, expected a divisor of hidden_size (16) of which twice is a multiple of "
      "it, as experts have biases");
}

TEST(HfConfigGlm, HalfOfAHeadTurnsUnlessTheFileSaysOtherwise) {
  const Json config = made("glm4_moe");
  EXPECT_EQ(read(config).rotary_dim, 4);
  EXPECT_EQ(read(config).rope_dim(), 4);
  EXPECT_EQ(read(without(config, "rope_parameters")).rotary_dim, 4);
  EXPECT_EQ(read(with(without(config, "rope_parameters"), "partial_rotary_factor", 0.75)).rotary_dim, 6);
  EXPECT_EQ(read(with(without(config, "rope_parameters"), "partial_rotary_factor", 1)).rotary_dim, 0);
  EXPECT_EQ(
      config_error(with(without(config, "rope_parameters"), "partial_rotary_factor", 0.4)),
      "[config.json partial_rotary_factor] turns 3 elements of a head, expected an even number from 2 to 8");
  EXPECT_EQ(read(config).qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(read(without(config, "use_qk_norm")).qk_norm, QkNorm::kNone);
  EXPECT_FALSE(read(without(config, "attention_bias")).qkv_bias);
  EXPECT_EQ(read(without(config, "routed_scaling_factor")).routed_scale, 1);
  EXPECT_EQ(read(without(config, "first_k_dense_replace")).num_moe_layers(), 2);
}

TEST(HfConfigMiniMax, RotaryWidthByEitherKey) {
  const Json config = made("minimax_m2");
  EXPECT_EQ(read(config).rotary_dim, 4);
  const Json released = without(config, "rope_parameters");
  EXPECT_EQ(read(released).rotary_dim, 4);
  EXPECT_EQ(read(without(released, "rotary_dim")).rotary_dim, 0);
  EXPECT_EQ(read(config).qk_norm, QkNorm::kWhole);
  EXPECT_EQ(read(config).aux_loss_coef, 0);  // output_router_logits is false
}

TEST(HfConfigErnie, LayersWithExpertsAreAnInterval) {
  const Json config = made("ernie4_5_moe");
  EXPECT_EQ(read(config).dense_layer, (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(read(with(config, "moe_layer_end_index", 2)).dense_layer,
            (std::vector<bool>{true, false, true, true}));
  EXPECT_EQ(read(with(config, "moe_layer_interval", 1)).dense_layer,
            (std::vector<bool>{true, false, false, false}));
  EXPECT_TRUE(read(without(config, "tie_word_embeddings")).tie_embeddings);
  EXPECT_TRUE(read(config).rope_interleaved);
  EXPECT_EQ(read(config).least_weight_sum, 1e-12);
  EXPECT_EQ(read(renamed(config, "moe_k", "num_experts_per_tok")), read(config));
}

TEST(HfConfigKimi, IsReadAsDeepSeekV3) {
  ModelConfig kimi = read(made("kimi_k2"));
  EXPECT_EQ(kimi.model_type, "kimi_k2");
  const ModelConfig v3 = read(with(made("kimi_k2"), "model_type", "deepseek_v3"));
  kimi.name = kimi.model_type = "deepseek_v3";
  EXPECT_EQ(kimi, v3);
}

TEST(Families, SettingsThatAreNotImplementedAreRefusedByName) {
  using Case = std::tuple<const char*, const char*, Json, const char*>;
  for (const auto& [folder, key, value, message] : std::vector<Case>{
           {"qwen2_moe", "use_sliding_window", true, "use_sliding_window: got true, expected false"},
           {"minimax_m2", "use_qk_norm", false, "use_qk_norm: got false, expected true"},
           {"minimax_m2", "qk_norm_type", "per_head",
            "qk_norm_type: got \"per_head\", expected \"per_layer\""},
           {"minimax_m2", "use_routing_bias", false, "use_routing_bias: got false, expected true"},
           {"minimax_m2", "shared_intermediate_size", 8, "shared_intermediate_size: got 8, expected 0"},
           {"minimax_m2", "attn_type_list", {1, 0}, "attn_type_list: got 0, expected 1"},
           {"minimax_m2", "output_router_logits", true, "output_router_logits: got true, expected false"},
           {"ernie4_5_moe", "output_router_logits", true, "output_router_logits: got true, expected false"},
           {"ernie4_5_moe", "use_bias", true, "use_bias: got true, expected false"},
           {"kimi_k2", "topk_method", "greedy", "topk_method: got \"greedy\", expected \"noaux_tc\""}}) {
    EXPECT_EQ(read(with(made(folder), key, value)).unsupported, std::vector<std::string>{message});
  }
  EXPECT_TRUE(read(with(made("minimax_m2"), "attn_type_list", {1, 1})).unsupported.empty());
}

// --- intervals ---

TEST(LayerIntervals, AreFoundWhereThereIsOne) {
  u64 state = 5;
  i64 found = 0, none = 0;
  for (int i = 0; i < 2000; ++i) {
    ModelConfig model;
    model.num_layers =
        1 + static_cast<i64>((state = state * 6364136223846793005ULL + 1442695040888963407ULL) >> 33) % 7;
    for (i64 l = 0; l < model.num_layers; ++l)
      model.dense_layer.push_back(
          ((state = state * 6364136223846793005ULL + 1442695040888963407ULL) >> 40) % 2 != 0);
    bool expected = false;  // by trying all
    for (i64 first = 0; first < model.num_layers; ++first) {
      for (i64 last = first; last < model.num_layers; ++last) {
        for (i64 step = 1; step <= model.num_layers; ++step) {
          bool same = model.num_moe_layers() > 0;
          for (i64 l = 0; l < model.num_layers; ++l)
            same = same && model.is_moe(l) == (l >= first && l <= last && (l + 1) % step == 0);
          expected = expected || same;
        }
      }
    }
    const std::optional<LayerInterval> got = moe_interval(model);
    EXPECT_EQ(got.has_value(), expected);
    (expected ? found : none) += 1;
    for (i64 l = 0; got && l < model.num_layers; ++l)
      EXPECT_EQ(model.is_moe(l), l >= got->first && l <= got->last && (l + 1) % got->step == 0);
  }
  EXPECT_GT(found, 100);
  EXPECT_GT(none, 100);
}

// --- growth ---

TEST(Families, GrowthThatWouldChangeTheFunctionIsRefused) {
  const auto refused = [](const std::string& begin, const auto& run) {
    const std::string message = error_of<ConfigError>(run);
    EXPECT_TRUE(message.starts_with(begin)) << message;
  };
  GrowthOptions twice;
  twice.factor = 2;
  refused("[--factor] would make ernie4_5_moe (ernie4_5_moe) another function",
          [&] { plan_growth(read(made("ernie4_5_moe")), twice); });
  refused("[qwen2] is of family qwen2, to which no family with experts belongs",
          [&] { sparse_model(read(made("qwen2")), 4, 2); });
  SparseOptions layers;
  layers.layers = {1};
  refused("[--layers] would make qwen2_moe another function: a gate multiplies",
          [&] { plan_sparse(read(with(made("qwen2_moe"), "norm_topk_prob", true)), layers); });
}

// --- families that are not implemented ---

Json unknown() {
  return {{"model_type", "granite"},
          {"hidden_size", 64},
          {"num_hidden_layers", 4},
          {"num_attention_heads", 8},
          {"num_key_value_heads", 2},
          {"head_dim", 16},
          {"vocab_size", 100},
          {"num_local_experts", 8},
          {"num_experts_per_tok", 2},
          {"intermediate_size", 32},
          {"max_position_embeddings", 512}};
}
ModelConfig any(const Json& config) { return any_model_from_hf(config, "config.json"); }

TEST(UnknownFamilies, SizesAreReadAndTheModelSaysWhatItAssumes) {
  const ModelConfig model = any(unknown());
  EXPECT_EQ(model.model_type, "granite");
  EXPECT_EQ(model.hidden, 64);
  EXPECT_EQ(model.num_experts, 8);
  EXPECT_EQ(model.top_k, 2);
  EXPECT_EQ(model.expert_hidden, 32);
  EXPECT_EQ(model.num_moe_layers(), 4);
  EXPECT_EQ(model.key_width(), 32);
  EXPECT_EQ(
      model.assumed,
      "model_type \"granite\" is not trained here; sizes read from hidden_size, num_hidden_layers, "
      "vocab_size, "
      "max_position_embeddings, num_attention_heads, num_key_value_heads, head_dim, num_local_experts, "
      "num_experts_per_tok, intermediate_size; assumed: gated MLPs of three matrices, causal attention to "
      "all "
      "tokens before, no biases, no norms of queries and keys, untied embeddings; softmax router; experts in "
      "all layers");
  i64 total = 0;
  for (const ParamInfo& info : parameters(model)) total += info.numel();
  EXPECT_EQ(count_parameters(model).total, total);
}

TEST(UnknownFamilies, OtherNamesOfSizesDenseLayersAndLatentAttention) {
  Json other = renamed(renamed(unknown(), "hidden_size", "d_model"), "num_hidden_layers", "n_layer");
  other["first_k_dense_replace"] = 1;
  other["moe_intermediate_size"] = 16;
  other["n_shared_experts"] = 1;
  const ModelConfig model = any(other);
  EXPECT_EQ(model.num_moe_layers(), 3);
  EXPECT_EQ(model.dense_hidden, 32);
  EXPECT_EQ(model.shared_hidden(), 16);
  EXPECT_NE(model.assumed.find("experts in all layers but the first"), std::string::npos);
  Json latent = unknown();
  latent["kv_lora_rank"] = 12, latent["qk_nope_head_dim"] = 8, latent["qk_rope_head_dim"] = 4,
  latent["v_head_dim"] = 8;
  EXPECT_EQ(any(latent).attention, AttentionKind::kMla);
  EXPECT_EQ(any(latent).head_dim, 12);
  Json dense = without(unknown(), "num_local_experts");
  EXPECT_EQ(any(dense).num_moe_layers(), 0);
  EXPECT_EQ(any(dense).dense_hidden, 32);
}

TEST(UnknownFamilies, AMissingSizeIsNamed) {
  EXPECT_EQ(
      error_of<ConfigError>([&] { any(without(unknown(), "hidden_size")); }),
      "[config.json hidden_size] missing (or \"n_embd\") (or \"d_model\"): expected an integer from 1 to "
      "16777216");
  EXPECT_EQ(error_of<ConfigError>([&] { any(with(unknown(), "num_experts_per_tok", 9)); }),
            "[config.json num_experts_per_tok] more than there are experts: got 9, expected 1 to 8");
}

TEST(UnknownFamilies, DoNotTrain) {
  const std::string message = error_of<ConfigError>([&] { check_trainable(any(unknown())); });
  EXPECT_TRUE(
      message.starts_with("[granite] this model cannot be trained here: model_type: got \"granite\", "
                          "expected one of mixtral, "))
      << message;
  EXPECT_EQ(config_error(unknown()).substr(0, 64),
            "[config.json model_type] unknown model family: got \"granite\". Kn");
}

TEST(UnknownFamilies, ALanguageModelAmongOthersIsRefused) {
  const Json nested = {
      {"model_type", "qwen3_vl_moe"}, {"text_config", unknown()}, {"vision_config", Json::object()}};
  const std::string expected =
      "[config.json text_config] the language model of \"qwen3_vl_moe\" is one of several models of this "
      "file, as of "
      "one that also reads pictures or sound: expected the config.json of a language model alone";
  EXPECT_EQ(error_of<ConfigError>([&] { any(nested); }), expected);
  EXPECT_EQ(config_error(nested), expected);
}

}  // namespace
}  // namespace hetermoe
