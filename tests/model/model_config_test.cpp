#include "hetermoe/model/model_config.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <set>

#include "tests/model/configs.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

double billions(i64 count) { return static_cast<double>(count) / 1e9; }

// --- counts ---

struct Published {
  const char* name;
  double total, active;  ///< billions, as published or derived from the released checkpoints
  double tolerance;
};

TEST(ParameterCounts, ReleasedModelsMatchPublishedValues) {
  const Published published[] = {
      {"mixtral-8x7b", 46.703, 12.880, 0.001},  {"qwen3-30b-a3b", 30.532, 3.353, 0.001},
      {"olmoe-1b-7b", 6.919, 1.282, 0.001},     {"deepseek-v2-lite", 15.706, 2.66, 0.01},
      {"deepseek-v2", 235.741, 21.4, 0.05},     {"deepseek-v3", 671.026, 37.55, 0.05},
      {"qwen3-235b-a22b", 235.094, 22.2, 0.05},
  };
  for (const Published& model : published) {
    const ParamCounts counts = count_parameters(load_model(model.name));
    EXPECT_NEAR(billions(counts.total), model.total, 0.001) << model.name;
    EXPECT_NEAR(billions(counts.active), model.active, model.tolerance) << model.name;
  }
}

TEST(ParameterCounts, MixtralToTheLastElement) {
  // sum of the tensors of the released checkpoint's index file
  EXPECT_EQ(count_parameters(load_model("mixtral-8x7b")).total, 46702792704);
}

TEST(ParameterCounts, PaperModelsWithoutEmbeddings) {
  const std::vector<std::pair<std::string, double>> totals = {
      {"w1", 2.156}, {"w2", 4.270}, {"d1", 2.135}, {"d2", 1.205}, {"d3", 3.545}};
  for (const auto& [name, total] : totals) {
    const ModelConfig model = load_model(name);
    EXPECT_NEAR(billions(count_parameters(model).total - 2 * model.vocab * model.hidden), total, 0.0005)
        << name;
    EXPECT_EQ(model.query_width(), model.hidden) << name;
    EXPECT_EQ(4 * model.key_width(), model.hidden) << name;
    EXPECT_EQ(2 * model.expert_hidden, 7 * model.hidden) << name;
  }
}

TEST(ParameterCounts, EqualTheSumOfTheTable) {
  for (const std::string& name : known_models()) {
    const ModelConfig model = load_model(name);
    const ParamCounts counts = count_parameters(model);
    i64 total = 0, embedding = 0, head = 0, expert = 0;
    std::vector<i64> part(static_cast<std::size_t>(model.num_layers), 0);
    for (const ParamInfo& info : parameters(model)) {
      total += info.numel();
      if (info.expert >= 0) {
        if (info.expert == 1 && info.layer == model.num_layers - 1) expert += info.numel();
      } else if (info.layer >= 0) {
        part[static_cast<std::size_t>(info.layer)] += info.numel();
      } else {
        (info.name == "model.embed_tokens.weight" ? embedding : head) += info.numel();
      }
    }
    EXPECT_EQ(counts.total, total) << name;
    EXPECT_EQ(counts.embedding, embedding) << name;
    EXPECT_EQ(counts.head, head) << name;
    EXPECT_EQ(counts.expert, expert) << name;
    EXPECT_EQ(counts.attention_part, part) << name;
  }
}

TEST(ParameterCounts, TiedEmbeddingsCountOnce) {
  const ModelConfig model = read(with(small("qwen3_moe"), "tie_word_embeddings", true));
  const ParamCounts counts = count_parameters(model);
  EXPECT_EQ(counts.head, model.hidden);
  EXPECT_EQ(counts.total, count_parameters(read(small("qwen3_moe"))).total - model.vocab * model.hidden);
  for (const ParamInfo& info : parameters(model)) EXPECT_NE(info.name, "lm_head.weight");
}

// --- names and shapes ---

struct Expected {
  std::string name;
  std::vector<i64> shape;
};

void expect_tensors(const std::string& model_name, const std::vector<Expected>& expected) {
  const std::vector<ParamInfo> table = parameters(load_model(model_name));
  for (const Expected& want : expected) {
    const auto found =
        std::find_if(table.begin(), table.end(), [&](const ParamInfo& p) { return p.name == want.name; });
    ASSERT_NE(found, table.end()) << model_name << " lacks " << want.name;
    EXPECT_EQ(found->shape, want.shape) << model_name << " " << want.name;
  }
}

TEST(Parameters, NamesAndShapesOfTheReleasedModels) {
  expect_tensors("mixtral-8x7b", {{"model.embed_tokens.weight", {32000, 4096}},
                                  {"model.layers.0.self_attn.q_proj.weight", {4096, 4096}},
                                  {"model.layers.0.self_attn.k_proj.weight", {1024, 4096}},
                                  {"model.layers.31.self_attn.o_proj.weight", {4096, 4096}},
                                  {"model.layers.31.block_sparse_moe.gate.weight", {8, 4096}},
                                  {"model.layers.31.block_sparse_moe.experts.7.w1.weight", {14336, 4096}},
                                  {"model.layers.31.block_sparse_moe.experts.7.w2.weight", {4096, 14336}},
                                  {"model.layers.31.block_sparse_moe.experts.7.w3.weight", {14336, 4096}},
                                  {"lm_head.weight", {32000, 4096}}});
  expect_tensors("qwen3-30b-a3b", {{"model.layers.3.self_attn.q_proj.weight", {4096, 2048}},
                                   {"model.layers.3.self_attn.o_proj.weight", {2048, 4096}},
                                   {"model.layers.3.self_attn.v_proj.weight", {512, 2048}},
                                   {"model.layers.3.self_attn.q_norm.weight", {128}},
                                   {"model.layers.3.self_attn.k_norm.weight", {128}},
                                   {"model.layers.47.mlp.gate.weight", {128, 2048}},
                                   {"model.layers.47.mlp.experts.127.down_proj.weight", {2048, 768}}});
  expect_tensors("olmoe-1b-7b", {{"model.layers.0.self_attn.q_norm.weight", {2048}},
                                 {"model.layers.0.self_attn.k_norm.weight", {2048}},
                                 {"model.layers.15.mlp.experts.63.up_proj.weight", {1024, 2048}}});
}

TEST(Parameters, NamesAndShapesOfDeepSeek) {
  expect_tensors("deepseek-v2-lite", {{"model.layers.0.self_attn.q_proj.weight", {3072, 2048}},
                                      {"model.layers.0.self_attn.kv_a_proj_with_mqa.weight", {576, 2048}},
                                      {"model.layers.0.self_attn.kv_a_layernorm.weight", {512}},
                                      {"model.layers.0.self_attn.kv_b_proj.weight", {4096, 512}},
                                      {"model.layers.0.self_attn.o_proj.weight", {2048, 2048}},
                                      {"model.layers.0.mlp.gate_proj.weight", {10944, 2048}},
                                      {"model.layers.1.mlp.shared_experts.down_proj.weight", {2048, 2816}},
                                      {"model.layers.26.mlp.experts.63.gate_proj.weight", {1408, 2048}}});
  expect_tensors("deepseek-v3", {{"model.layers.0.self_attn.q_a_proj.weight", {1536, 7168}},
                                 {"model.layers.0.self_attn.q_a_layernorm.weight", {1536}},
                                 {"model.layers.0.self_attn.q_b_proj.weight", {24576, 1536}},
                                 {"model.layers.60.self_attn.kv_b_proj.weight", {32768, 512}},
                                 {"model.layers.60.self_attn.o_proj.weight", {7168, 16384}},
                                 {"model.layers.2.mlp.down_proj.weight", {7168, 18432}},
                                 {"model.layers.3.mlp.gate.e_score_correction_bias", {256}}});
}

TEST(Parameters, OnlyTheCorrectionBiasIsABuffer) {
  for (const std::string& name : known_models()) {
    for (const ParamInfo& info : parameters(load_model(name))) {
      EXPECT_EQ(info.buffer, info.name.ends_with("e_score_correction_bias")) << name << " " << info.name;
    }
  }
}

TEST(Parameters, NamesAreUniqueAndLayersInOrderWithExpertsLast) {
  for (const std::string& name : known_models()) {
    const ModelConfig model = load_model(name);
    std::set<std::string> names;
    i32 layer = -1;
    ExpertId expert = -1;
    for (const ParamInfo& info : parameters(model)) {
      EXPECT_TRUE(names.insert(info.name).second) << info.name;
      if (info.layer < 0) continue;
      EXPECT_GE(info.layer, layer) << info.name;
      if (info.layer > layer) expert = -1;
      layer = info.layer;
      EXPECT_GE(info.expert, expert) << info.name;
      expert = info.expert;
      EXPECT_TRUE(info.expert == -1 || model.is_moe(info.layer)) << info.name;
    }
    EXPECT_EQ(layer, model.num_layers - 1);
    EXPECT_EQ(expert, model.num_experts - 1);
  }
}

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

TEST(HfConfig, RotaryPairing) {
  EXPECT_FALSE(read(small("mixtral")).rope_interleaved);
  EXPECT_TRUE(read(small("deepseek_v2")).rope_interleaved);
  EXPECT_TRUE(read(small("deepseek_v3")).rope_interleaved);
  EXPECT_FALSE(read(with(small("deepseek_v3"), "rope_interleave", false)).rope_interleaved);
}

TEST(HfConfig, UnknownKeysThatChangeNothingAreIgnored) {
  EXPECT_EQ(read(with(small("mixtral"), "transformers_version", "5.0.0")), read(small("mixtral")));
}

// --- settings that are not implemented ---

TEST(Unsupported, NamesTheKeyTheValueAndTheExpectation) {
  using List = std::vector<std::string>;
  EXPECT_EQ(unsupported_with("mixtral", "sliding_window", 4096),
            List{"sliding_window: got 4096, expected null or at least 32768 (max_position_embeddings)"});
  EXPECT_EQ(unsupported_with("mixtral", "hidden_act", "gelu"),
            List{"hidden_act: got \"gelu\", expected \"silu\""});
  EXPECT_EQ(unsupported_with("mixtral", "attention_bias", true),
            List{"attention_bias: got true, expected false"});
  EXPECT_EQ(unsupported_with("deepseek_v2", "mlp_bias", true), List{"mlp_bias: got true, expected false"});
  EXPECT_EQ(unsupported_with("olmoe", "attention_dropout", 0.1),
            List{"attention_dropout: got 0.1, expected 0"});
  EXPECT_EQ(unsupported_with("mixtral", "router_jitter_noise", 0.01),
            List{"router_jitter_noise: got 0.01, expected 0"});
  EXPECT_EQ(unsupported_with("qwen3_moe", "rope_scaling", {{"type", "linear"}, {"factor", 2.0}}),
            List{"rope_scaling: got type \"linear\", expected plain rotary embedding"});
  EXPECT_EQ(unsupported_with("qwen3_moe", "rope_parameters", {{"rope_type", "yarn"}}),
            List{"rope_parameters: got type \"yarn\", expected plain rotary embedding"});
  EXPECT_EQ(unsupported_with("deepseek_v3", "scoring_func", "softmax"),
            List{"scoring_func: got \"softmax\", expected \"sigmoid\""});
  EXPECT_EQ(unsupported_with("deepseek_v2", "topk_method", "noaux_tc"),
            List{"topk_method: got \"noaux_tc\", expected \"greedy\""});
  EXPECT_EQ(unsupported_with("deepseek_v2", "norm_topk_prob", true),
            List{"norm_topk_prob: got true, expected false"});
  EXPECT_EQ(unsupported_with("deepseek_v2", "moe_layer_freq", 2), List{"moe_layer_freq: got 2, expected 1"});
  EXPECT_EQ(unsupported_with("qwen3_moe", "layer_types", {"full_attention", "sliding_attention"}),
            List{"layer_types: got \"sliding_attention\", expected \"full_attention\""});
}

TEST(Unsupported, QuantisedWeightsThatAreNotFp8InBlocks) {
  const Json fp8 = {{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}};
  EXPECT_TRUE(unsupported_with("mixtral", "quantization_config", fp8).empty());
  for (const Json& other : {Json{{"quant_method", "gptq"}}, Json{{"quant_method", "fp8"}}})
    EXPECT_EQ(unsupported_with("mixtral", "quantization_config", other).size(), 1u) << other;
}

TEST(Unsupported, InactiveSettingsAreNot) {
  EXPECT_TRUE(unsupported_with("mixtral", "sliding_window", 32768).empty());
  EXPECT_TRUE(unsupported_with("qwen3_moe", "sliding_window", 4096).empty());  // needs use_sliding_window
  EXPECT_TRUE(unsupported_with("olmoe", "sliding_window", 16).empty());        // not a key of this family
  EXPECT_TRUE(unsupported_with("qwen3_moe", "rope_scaling", {{"rope_type", "default"}}).empty());
  Json active = with(small("qwen3_moe"), "sliding_window", 4096);
  EXPECT_EQ(read(with(active, "use_sliding_window", true)).unsupported.size(), 1u);
}

TEST(Unsupported, ReleasedDeepSeekLoadsButDoesNotTrain) {
  const ModelConfig model = load_model("deepseek-v3");
  try {
    check_trainable(model);
    FAIL() << "expected a refusal";
  } catch (const ConfigError& error) {
    EXPECT_EQ(
        std::string(error.what()),
        "[deepseek-v3] this model cannot be trained here: rope_scaling: got type \"yarn\", expected plain "
        "rotary "
        "embedding. Planning, simulation and inspection do not depend on these settings.");
  }
}

TEST(Unsupported, EveryOtherKnownModelTrains) {
  for (const std::string& name : known_models()) {
    if (name.starts_with("deepseek-")) continue;
    EXPECT_NO_THROW(check_trainable(load_model(name))) << name;
  }
}

// --- files ---

TEST(LoadModel, KnowsTheShippedModels) {
  const std::vector<std::string> names = known_models();
  for (const char* name : {"mixtral-8x7b",
                           "qwen3-30b-a3b",
                           "qwen3-235b-a22b",
                           "olmoe-1b-7b",
                           "deepseek-v2-lite",
                           "deepseek-v2",
                           "deepseek-v3",
                           "w1",
                           "w2",
                           "d1",
                           "d2",
                           "d3",
                           "tiny",
                           "demo",
                           "s",
                           "m",
                           "tiny-qwen3",
                           "tiny-olmoe",
                           "tiny-deepseek-v2",
                           "tiny-deepseek-v3"}) {
    EXPECT_NE(std::find(names.begin(), names.end(), name), names.end()) << name;
    EXPECT_EQ(load_model(name).name, name);
  }
  EXPECT_EQ(load_model("Mixtral-8x7B").name, "mixtral-8x7b");
}

TEST(LoadModel, UnknownNameSuggests) {
  const std::string text = load_error("mixtral-8x7");
  EXPECT_NE(text.find("Did you mean \"mixtral-8x7b\"?"), std::string::npos) << text;
}

TEST(LoadModel, ReadsAFolderAndAFile) {
  const WorkFolder parent;
  const std::filesystem::path folder = parent / "my-model";
  write_text(folder / "config.json", small("olmoe").dump());
  ModelConfig expected = read(small("olmoe"));
  expected.name = "my-model";
  EXPECT_EQ(load_model(folder.string()), expected);
  EXPECT_EQ(load_model((folder / "config.json").string()), expected);
  EXPECT_EQ(load_model(folder.string() + "/"), expected);
  EXPECT_NE(load_error(folder.parent_path().string()).find("holds no config.json"), std::string::npos);
}

// --- writing ---

TEST(ToHf, RoundTripsEveryTrainableModel) {
  for (const std::string& name : known_models()) {
    const ModelConfig model = load_model(name);
    if (!model.unsupported.empty()) {
      EXPECT_THROW(to_hf(model), ConfigError) << name;
      continue;
    }
    ModelConfig again = read(to_hf(model));
    again.name = name;
    EXPECT_EQ(again, model) << name;
  }
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
