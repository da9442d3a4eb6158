#include <gtest/gtest.h>

#include "tests/model/configs.h"

// What config.json of each family means, and what is written.
namespace hetermoe {
namespace {

// --- aliases and defaults ---

TEST(HfConfig, TransformersFiveNamesReadTheSame) {
  const Json mixtral = small("mixtral"), qwen = small("qwen3_moe"), deepseek = small("deepseek_v3");
  EXPECT_EQ(read(renamed(mixtral, "num_local_experts", "num_experts")), read(mixtral));
  EXPECT_EQ(read(renamed(qwen, "num_experts", "num_local_experts")), read(qwen));
  EXPECT_EQ(read(renamed(deepseek, "n_routed_experts", "num_local_experts")), read(deepseek));
  EXPECT_EQ(read(renamed(qwen, "torch_dtype", "dtype")), read(qwen));
  const Json rope = {{"rope_theta", qwen.at("rope_theta")}, {"rope_type", "default"}};
  EXPECT_EQ(read(with(without(without(qwen, "rope_theta"), "rope_scaling"), "rope_parameters", rope)),
            read(qwen));
}

TEST(HfConfig, ArchitecturesStandInForAMissingModelType) {
  EXPECT_EQ(read(without(small("olmoe"), "model_type")), read(small("olmoe")));
}

TEST(HfConfig, AliasesThatDisagreeAreAnError) {
  EXPECT_EQ(config_error(with(small("mixtral"), "num_experts", 5)),
            "[config.json num_experts] two names of one setting disagree: got 5 here and 4 in "
            "\"num_local_experts\"");
  EXPECT_EQ(
      config_error(with(small("mixtral"), "rope_parameters", {{"rope_theta", 5}})),
      "[config.json rope_parameters rope_theta] two names of one setting disagree: got 5 here and 1000000 "
      "elsewhere");
}

TEST(HfConfig, MissingNormTopkProbMeansTheClassDefault) {
  EXPECT_TRUE(read(small("qwen3_moe")).normalize_top_k);
  EXPECT_FALSE(read(without(small("qwen3_moe"), "norm_topk_prob")).normalize_top_k);
  EXPECT_FALSE(read(without(small("olmoe"), "norm_topk_prob")).normalize_top_k);
  EXPECT_TRUE(read(without(small("deepseek_v3"), "norm_topk_prob")).normalize_top_k);
  EXPECT_FALSE(read(with(small("deepseek_v3"), "norm_topk_prob", false)).normalize_top_k);
  EXPECT_FALSE(read(without(small("deepseek_v2"), "norm_topk_prob")).normalize_top_k);
  // Mixtral has no such key and always divides.
  EXPECT_TRUE(read(with(small("mixtral"), "norm_topk_prob", false)).normalize_top_k);
}

TEST(HfConfig, MissingHeadDimIsHiddenPerHead) {
  const Json qwen = small("qwen3_moe");
  EXPECT_EQ(read(qwen).head_dim, 32);
  EXPECT_EQ(read(without(qwen, "head_dim")).head_dim, 16);
  EXPECT_EQ(read(with(qwen, "head_dim", nullptr)).head_dim, 16);
}

TEST(HfConfig, MissingTieWordEmbeddingsMeansUntied) {
  for (const std::string& family : kFamilies) {
    EXPECT_FALSE(read(without(small(family), "tie_word_embeddings")).tie_embeddings) << family;
  }
}

TEST(HfConfig, OtherClassDefaults) {
  const auto only = [](const std::string& family, const std::string& key) {
    return read(without(small(family), key));
  };
  EXPECT_EQ(only("mixtral", "rms_norm_eps").norm_eps, 1e-5);
  EXPECT_EQ(only("qwen3_moe", "rms_norm_eps").norm_eps, 1e-6);
  EXPECT_EQ(only("mixtral", "rope_theta").rope_theta, 1e6);
  EXPECT_EQ(only("qwen3_moe", "rope_theta").rope_theta, 1e4);
  EXPECT_EQ(only("mixtral", "router_aux_loss_coef").aux_loss_coef, 0.001);
  EXPECT_EQ(only("olmoe", "router_aux_loss_coef").aux_loss_coef, 0.01);
  EXPECT_EQ(only("olmoe", "num_key_value_heads").num_kv_heads, 4);
  EXPECT_EQ(only("qwen3_moe", "num_key_value_heads").num_kv_heads, 4);
  EXPECT_EQ(read(with(small("mixtral"), "num_key_value_heads", nullptr)).num_kv_heads, 4);
  EXPECT_EQ(only("deepseek_v2", "q_lora_rank").q_lora_rank, 1536);
  EXPECT_EQ(read(with(small("deepseek_v3"), "q_lora_rank", nullptr)).q_lora_rank, 0);
  EXPECT_EQ(only("deepseek_v2", "n_shared_experts").num_shared_experts, 2);
  EXPECT_EQ(read(with(small("deepseek_v2"), "n_shared_experts", nullptr)).num_shared_experts, 0);
  EXPECT_EQ(only("deepseek_v2", "routed_scaling_factor").routed_scale, 1.0);
  EXPECT_EQ(only("deepseek_v3", "routed_scaling_factor").routed_scale, 2.5);
  EXPECT_EQ(only("deepseek_v2", "first_k_dense_replace").num_moe_layers(), 3);
  EXPECT_EQ(only("llama", "num_key_value_heads").num_kv_heads, 4);
  EXPECT_EQ(only("llama", "rms_norm_eps").norm_eps, 1e-6);
  EXPECT_EQ(only("qwen3", "head_dim").head_dim, 128);
  EXPECT_EQ(only("mistral", "sliding_window").sliding_window, 4096);
}

TEST(HfConfig, DeepSeekRouting) {
  const ModelConfig v3 = load_model("deepseek-v3"), v2 = load_model("deepseek-v2"),
                    lite = load_model("deepseek-v2-lite");
  EXPECT_EQ(v3.router_score, RouterScore::kSigmoid);
  EXPECT_TRUE(v3.router_bias);
  EXPECT_EQ(v3.group_score, GroupScore::kTopTwoSum);
  EXPECT_EQ(v3.num_expert_groups, 8);
  EXPECT_EQ(v3.top_k_groups, 4);
  EXPECT_EQ(v3.routed_scale, 2.5);
  EXPECT_EQ(v2.router_score, RouterScore::kSoftmax);
  EXPECT_FALSE(v2.router_bias);
  EXPECT_EQ(v2.group_score, GroupScore::kMax);
  EXPECT_EQ(v2.top_k_groups, 3);
  EXPECT_EQ(v2.routed_scale, 16.0);
  EXPECT_EQ(lite.group_score, GroupScore::kNone);
  EXPECT_FALSE(lite.normalize_top_k);
  // A group choice that keeps every group masks nothing.
  EXPECT_EQ(read(with(small("deepseek_v3"), "topk_group", 4)).group_score, GroupScore::kNone);
}

TEST(HfConfig, DenseLayers) {
  EXPECT_EQ(read(small("deepseek_v3")).dense_layer, (std::vector<bool>{true, false, false}));
  Json qwen = with(small("qwen3_moe"), "num_hidden_layers", 4);
  EXPECT_EQ(read(with(qwen, "mlp_only_layers", {0, 2})).dense_layer,
            (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(read(with(qwen, "decoder_sparse_step", 2)).dense_layer,
            (std::vector<bool>{true, false, true, false}));
  EXPECT_EQ(read(with(qwen, "mlp_only_layers", {3})).dense_hidden, 128);
  EXPECT_EQ(read(qwen).dense_hidden, 0);
}

TEST(HfConfig, DenseFamiliesHaveNoExperts) {
  for (const char* family : {"llama", "qwen3", "mistral"}) {
    const ModelConfig model = read(small(family));
    EXPECT_EQ(model.num_moe_layers(), 0) << family;
    EXPECT_EQ(model.num_experts, 0) << family;
    EXPECT_EQ(model.aux_loss_coef, 0) << family;
    EXPECT_EQ(model.dense_hidden, 128) << family;
    EXPECT_EQ(to_hf(model).count("num_experts_per_tok"), 0u) << family;
  }
  EXPECT_EQ(read(small("qwen3")).qk_norm, QkNorm::kPerHead);
  EXPECT_EQ(read(small("llama")).qk_norm, QkNorm::kNone);
}

TEST(HfConfig, ScaledRotaryEmbeddings) {
  const RopeScaling llama = load_model("llama-3.1-8b").rope_scaling;
  EXPECT_EQ(llama, (RopeScaling{.kind = RopeKind::kLlama3,
                                .factor = 8,
                                .original_positions = 8192,
                                .low_freq_factor = 1,
                                .high_freq_factor = 4}));
  const RopeScaling v3 = load_model("deepseek-v3").rope_scaling;
  EXPECT_EQ(v3, (RopeScaling{.kind = RopeKind::kYarn,
                             .factor = 40,
                             .original_positions = 4096,
                             .mscale = 1,
                             .mscale_all_dim = 1}));
  // Missing original positions are those of the model; transformers 5 has them in rope_parameters.
  const Json yarn = {{"rope_type", "yarn"}, {"factor", 2}, {"rope_theta", 500000.0}};
  const ModelConfig five = read(with(small("llama"), "rope_parameters", yarn));
  EXPECT_EQ(five.rope_scaling.original_positions, 32768);
  EXPECT_EQ(five, read(with(small("llama"), "rope_scaling", yarn)));
  EXPECT_TRUE(five.unsupported.empty());
}

TEST(HfConfig, SlidingWindows) {
  EXPECT_EQ(read(with(small("mixtral"), "sliding_window", 4096)).sliding_window, 4096);
  EXPECT_EQ(read(with(small("mixtral"), "sliding_window", 32768)).sliding_window, 0);  // hides nothing
  EXPECT_EQ(load_model("mistral-7b").window_of(31), 4096);
  Json moe = with(small("qwen3_moe"), "sliding_window", 4096);
  EXPECT_EQ(read(moe).sliding_window, 0);  // needs use_sliding_window
  EXPECT_EQ(read(with(moe, "use_sliding_window", true)).window_of(0), 4096);
  Json qwen = with(with(small("qwen3"), "use_sliding_window", true), "sliding_window", 16);
  EXPECT_EQ(read(qwen).sliding_window, 0);  // from layer max_window_layers on: behind the last
  const ModelConfig last = read(with(qwen, "max_window_layers", 3));
  EXPECT_EQ(last.sliding_layer, (std::vector<bool>{false, false, false, true}));
  EXPECT_EQ(last.window_of(2), 0);
  EXPECT_EQ(last.window_of(3), 16);
  EXPECT_EQ(first_layers(last, 2).sliding_layer.size(), 2u);
  const Json types = {"sliding_attention", "full_attention", "full_attention", "full_attention"};
  const ModelConfig first = read(with(qwen, "layer_types", types));
  EXPECT_EQ(first.window_of(0), 16);
  EXPECT_EQ(first.window_of(1), 0);
  for (const ModelConfig& model : {last, first}) EXPECT_EQ(read(to_hf(model)), model);
}

TEST(HfConfig, RotaryPairing) {
  EXPECT_FALSE(read(small("mixtral")).rope_interleaved);
  EXPECT_TRUE(read(small("deepseek_v2")).rope_interleaved);
  EXPECT_TRUE(read(small("deepseek_v3")).rope_interleaved);
  EXPECT_FALSE(read(with(small("deepseek_v3"), "rope_interleave", false)).rope_interleaved);
}

TEST(HfConfig, UnknownKeysThatChangeNothingAreIgnored) {
  EXPECT_EQ(read(with(small("mixtral"), "transformers_version", "5.0.0")), read(small("mixtral")));
}

// --- writing ---

TEST(ToHf, RoundTripsEveryTrainableModel) {
  for (const std::string& name : known_models()) {
    const ModelConfig model = load_model(name);
    ModelConfig again = read(to_hf(model));
    again.name = name;
    EXPECT_EQ(again, model) << name;
  }
}

TEST(ToHf, RoundTripsEveryScaling) {
  for (const Json& scaling : std::vector<Json>{
           {{"type", "linear"}, {"factor", 2}},
           {{"type", "dynamic"}, {"factor", 2.5}},
           {{"type", "yarn"},
            {"factor", 4},
            {"attention_factor", 1.5},
            {"truncate", false},
            {"beta_fast", 20}},
           {{"type", "yarn"}, {"factor", 4}, {"original_max_position_embeddings", 64}, {"mscale", 0.7}},
           {{"type", "llama3"}, {"factor", 4}, {"low_freq_factor", 1}, {"high_freq_factor", 3}}}) {
    const ModelConfig model = read(with(small("mistral"), "rope_scaling", scaling));
    EXPECT_NE(model.rope_scaling.kind, RopeKind::kDefault) << scaling;
    EXPECT_EQ(read(to_hf(model)), model) << scaling;
  }
}

TEST(ToHf, WhatIsNotImplementedIsNotWritten) {
  EXPECT_THROW(to_hf(read(with(small("llama"), "attention_bias", true))), ConfigError);
}

TEST(ToHf, RoundTripsDenseLayersTiesAndClipping) {
  Json qwen = with(with(small("qwen3_moe"), "num_hidden_layers", 4), "decoder_sparse_step", 2);
  qwen["tie_word_embeddings"] = true;
  EXPECT_EQ(read(to_hf(read(qwen))), read(qwen));
  const Json olmoe = with(small("olmoe"), "clip_qkv", 8.0);
  EXPECT_EQ(read(olmoe).clip_qkv, 8.0);
  EXPECT_EQ(read(to_hf(read(olmoe))), read(olmoe));
  const Json v2 = with(small("deepseek_v2"), "topk_group", 4);
  EXPECT_EQ(read(to_hf(read(v2))), read(v2));
}

}  // namespace
}  // namespace hetermoe
