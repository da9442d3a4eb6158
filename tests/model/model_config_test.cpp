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
      {"qwen3-235b-a22b", 235.094, 22.2, 0.05}, {"qwen3-1.7b", 1.721, 1.721, 0.001},
      {"qwen3-32b", 32.762, 32.762, 0.001},     {"llama-3.1-8b", 8.030, 8.030, 0.001},
      {"mistral-7b", 7.242, 7.242, 0.001},
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
  EXPECT_EQ(count_parameters(load_model("llama-3.1-8b")).total, 8030261248);
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

TEST(Parameters, NamesAndShapesOfDenseModels) {
  expect_tensors("llama-3.1-8b", {{"model.embed_tokens.weight", {128256, 4096}},
                                  {"model.layers.0.self_attn.k_proj.weight", {1024, 4096}},
                                  {"model.layers.31.mlp.gate_proj.weight", {14336, 4096}},
                                  {"model.layers.31.mlp.down_proj.weight", {4096, 14336}},
                                  {"lm_head.weight", {128256, 4096}}});
  expect_tensors("qwen3-32b", {{"model.layers.63.self_attn.q_proj.weight", {8192, 5120}},
                               {"model.layers.63.self_attn.q_norm.weight", {128}},
                               {"model.layers.63.mlp.up_proj.weight", {25600, 5120}}});
  for (const ParamInfo& info : parameters(load_model("qwen3-1.7b"))) EXPECT_NE(info.name, "lm_head.weight");
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

// --- settings that are not implemented ---

TEST(Unsupported, NamesTheKeyTheValueAndTheExpectation) {
  using List = std::vector<std::string>;
  EXPECT_EQ(unsupported_with("mixtral", "hidden_act", "gelu"),
            List{"hidden_act: got \"gelu\", expected \"silu\""});
  EXPECT_EQ(unsupported_with("mixtral", "attention_bias", true),
            List{"attention_bias: got true, expected false"});
  EXPECT_EQ(unsupported_with("deepseek_v2", "mlp_bias", true), List{"mlp_bias: got true, expected false"});
  EXPECT_EQ(unsupported_with("olmoe", "attention_dropout", 0.1),
            List{"attention_dropout: got 0.1, expected 0"});
  EXPECT_EQ(unsupported_with("mixtral", "router_jitter_noise", 0.01),
            List{"router_jitter_noise: got 0.01, expected 0"});
  EXPECT_EQ(
      unsupported_with("qwen3_moe", "rope_scaling", {{"type", "longrope"}, {"factor", 2.0}}),
      List{"rope_scaling: got type \"longrope\", expected one of default, linear, dynamic, yarn, llama3"});
  EXPECT_EQ(unsupported_with("llama", "rope_parameters",
                             {{"rope_type", "default"}, {"partial_rotary_factor", 0.5}}),
            List{"rope_parameters.partial_rotary_factor: expected 1"});
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
}

TEST(Unsupported, WhatIsNotImplementedLoadsButDoesNotTrain) {
  Json config = with(small("llama"), "rope_scaling", {{"type", "longrope"}});
  ModelConfig model = read(config);
  model.name = "odd";
  EXPECT_EQ(error_of<ConfigError>([&] { check_trainable(model); }),
            "[odd] this model cannot be trained here: rope_scaling: got type \"longrope\", expected one of "
            "default, linear, dynamic, yarn, llama3. Planning, simulation and inspection do not depend on "
            "these settings.");
}

TEST(Unsupported, EveryKnownModelTrains) {
  for (const std::string& name : known_models()) EXPECT_NO_THROW(check_trainable(load_model(name))) << name;
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
                           "tiny-deepseek-v3",
                           "qwen3-1.7b",
                           "qwen3-32b",
                           "llama-3.1-8b",
                           "mistral-7b",
                           "tiny-llama",
                           "tiny-qwen3-dense",
                           "tiny-mistral"}) {
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

}  // namespace
}  // namespace hetermoe
