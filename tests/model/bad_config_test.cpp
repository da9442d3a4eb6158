#include <gtest/gtest.h>

#include "tests/model/configs.h"

// Configs whose shapes are impossible.
namespace hetermoe {
namespace {

TEST(BadConfig, NamesFileKeyValueAndExpectation) {
  const Json mixtral = small("mixtral");
  EXPECT_EQ(config_error(without(mixtral, "hidden_size")),
            "[config.json hidden_size] missing: expected an integer from 1 to 16777216");
  EXPECT_EQ(
      config_error(without(mixtral, "num_local_experts")),
      "[config.json num_local_experts] missing (or \"num_experts\"): expected an integer from 1 to 65536");
  EXPECT_EQ(config_error(with(mixtral, "num_key_value_heads", 3)),
            "[config.json num_key_value_heads] does not divide num_attention_heads: got 3, expected a "
            "divisor of 4");
  EXPECT_EQ(config_error(without(mixtral, "num_key_value_heads")),
            "[config.json num_key_value_heads] does not divide num_attention_heads: got 8 (default of a "
            "missing key), "
            "expected a divisor of 4");
  EXPECT_EQ(config_error(with(mixtral, "num_experts_per_tok", 5)),
            "[config.json num_experts_per_tok] more than there are experts: got 5, expected 1 to 4");
  EXPECT_EQ(config_error(with(mixtral, "hidden_size", 0)),
            "[config.json hidden_size] out of range: got 0, expected 1 to 16777216");
  EXPECT_EQ(config_error(with(mixtral, "vocab_size", "many")),
            "[config.json vocab_size] wrong type: got string \"many\", expected an integer");
  EXPECT_EQ(config_error(with(mixtral, "hidden_size", 66)),
            "[config.json num_attention_heads] does not divide hidden_size: got 4, expected a divisor of 66, "
            "or give "
            "head_dim");
  EXPECT_EQ(
      config_error(with(mixtral, "head_dim", 15)),
      "[config.json head_dim] rotary embedding turns pairs of elements: got 15, expected an even number");
  EXPECT_EQ(config_error(Json::array()),
            "[config.json] wrong type: got array [], expected an object, as in a Hugging Face config.json");
}

TEST(BadConfig, UnknownFamilyListsTheKnownOnes) {
  EXPECT_EQ(
      config_error(with(small("mixtral"), "model_type", "mixtrl")),
      "[config.json model_type] unknown model family: got \"mixtrl\". Known: mixtral, qwen3_moe, olmoe, "
      "deepseek_v2, deepseek_v3, llama, qwen3, mistral, kimi_k2, qwen2, qwen2_moe, glm4_moe, minimax_m2, "
      "ernie4_5_moe, gpt_oss. Did you mean \"mixtral\"?");
  // Another version is not a slip of the keyboard.
  for (const char* other : {"deepseek_v32", "olmo2", "qwen3_5_moe"}) {
    const std::string error = config_error(with(small("mixtral"), "model_type", other));
    EXPECT_NE(error.find("unknown model family"), std::string::npos) << error;
    EXPECT_EQ(error.find("Did you mean"), std::string::npos) << error;
  }
  EXPECT_EQ(config_error(Json::object()).substr(0, 34), "[config.json model_type] missing. ");
}

TEST(BadConfig, DeepSeekGroups) {
  const Json v3 = small("deepseek_v3");
  EXPECT_EQ(config_error(with(v3, "n_group", 3)),
            "[config.json n_group] does not divide the experts: got 3, expected a divisor of 8");
  EXPECT_EQ(config_error(with(v3, "topk_group", 5)),
            "[config.json topk_group] more than there are groups: got 5, expected 1 to 4");
  EXPECT_EQ(config_error(with(v3, "n_group", 8)),
            "[config.json n_group] groups of one expert have no two best scores: got 8, expected at most 4");
  EXPECT_EQ(config_error(with(with(v3, "num_experts_per_tok", 5), "topk_group", 2)),
            "[config.json topk_group] keeps 4 experts per token, fewer than num_experts_per_tok: got 2, "
            "expected at "
            "least 3");
  EXPECT_EQ(config_error(with(v3, "qk_rope_head_dim", 7)),
            "[config.json qk_rope_head_dim] rotary embedding turns pairs of elements: got 7, expected an "
            "even number");
  EXPECT_EQ(config_error(with(v3, "first_k_dense_replace", 3)),
            "[config.json num_hidden_layers] all 3 layers are dense, expected at least one with experts");
}

TEST(BadConfig, EveryRequiredSizeIsMissedByName) {
  const std::vector<std::string> common = {"vocab_size", "hidden_size", "num_hidden_layers",
                                           "num_attention_heads"};
  const std::map<std::string, std::vector<std::string>> more = {
      {"mixtral", {"intermediate_size", "num_local_experts", "num_experts_per_tok"}},
      {"qwen3_moe", {"moe_intermediate_size", "num_experts", "num_experts_per_tok"}},
      {"olmoe", {"intermediate_size", "num_experts", "num_experts_per_tok"}},
      {"deepseek_v2",
       {"moe_intermediate_size", "intermediate_size", "n_routed_experts", "kv_lora_rank", "v_head_dim",
        "num_experts_per_tok"}},
      {"deepseek_v3", {"qk_nope_head_dim", "qk_rope_head_dim"}},
      {"llama", {"intermediate_size"}},
      {"qwen3", {"intermediate_size"}},
      {"mistral", {"intermediate_size"}}};
  for (const auto& [family, keys] : more) {
    std::vector<std::string> all = common;
    all.insert(all.end(), keys.begin(), keys.end());
    for (const std::string& key : all) {
      const std::string start = "[config.json " + key + "] missing";
      EXPECT_EQ(config_error(without(small(family), key)).substr(0, start.size()), start) << family;
      EXPECT_EQ(config_error(with(small(family), key, nullptr)).substr(0, start.size()), start) << family;
      const std::string zero = "[config.json " + key + "] out of range: got 0";
      EXPECT_EQ(config_error(with(small(family), key, 0)).substr(0, zero.size()), zero) << family;
    }
  }
}

TEST(BadConfig, ScalingOfRotaryEmbeddings) {
  const auto error = [](const Json& scaling) {
    return config_error(with(small("llama"), "rope_scaling", scaling));
  };
  EXPECT_EQ(error({{"type", "linear"}}),
            "[config.json rope_scaling factor] missing: rotary embedding of type linear needs it");
  EXPECT_EQ(error({{"type", "yarn"}, {"factor", 0}}),
            "[config.json rope_scaling factor] out of range: got 0, expected > 0");
  EXPECT_EQ(error({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 1}}),
            "[config.json rope_scaling high_freq_factor] missing: rotary embedding of type llama3 needs it");
  EXPECT_EQ(error({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 4}}),
            "[config.json rope_scaling high_freq_factor] got 4, expected more than low_freq_factor (4)");
  Json two = with(small("llama"), "rope_scaling", {{"type", "linear"}, {"factor", 2}});
  two["rope_parameters"] = {{"rope_type", "linear"}, {"factor", 3}};
  EXPECT_EQ(config_error(two),
            "[config.json rope_scaling] says another scaling than rope_parameters, expected one of the two");
  Json narrow = with(small("llama"), "rope_scaling", {{"type", "dynamic"}, {"factor", 2}});
  EXPECT_EQ(config_error(with(narrow, "head_dim", 2)),
            "[config.json rope_scaling] got type dynamic for 2 elements, expected at least 4");
  const Json yarn = with(small("llama"), "rope_scaling", {{"type", "yarn"}, {"factor", 2}});
  EXPECT_EQ(config_error(with(yarn, "rope_theta", 1)),
            "[config.json rope_theta] got 1, expected more than 1 with scaling of type yarn");
}

TEST(BadConfig, ANameOfTheHubSaysHowToGetTheModel) {
  EXPECT_EQ(
      error_of<ConfigError>([] { load_model("mistralai/Mixtral-8x7B-v0.1"); }),
      "[mistralai/Mixtral-8x7B-v0.1] no such file or folder, and models are not fetched from the Hugging "
      "Face "
      "hub. Download it (hf download mistralai/Mixtral-8x7B-v0.1 --local-dir DIR) and name that folder");
  EXPECT_NE(
      error_of<ConfigError>([] { load_model("./mixtrl"); }).find("expected one or a name of configs/models"),
      std::string::npos);
}

TEST(BadConfig, WindowsOfLayers) {
  Json qwen = with(with(small("qwen3"), "use_sliding_window", true), "sliding_window", 16);
  EXPECT_EQ(config_error(with(qwen, "layer_types", {"full_attention"})),
            "[config.json layer_types] got 1 entries, expected one for each of the 4 layers");
  EXPECT_EQ(config_error(with(qwen, "sliding_window", 0)),
            "[config.json sliding_window] out of range: got 0, expected 1 to 1099511627776");
}

TEST(BadConfig, HugeSizesAreRefusedBeforeTheyOverflow) {
  Json huge = with(small("mixtral"), "num_local_experts", 65536);
  huge["intermediate_size"] = huge["hidden_size"] = 16777216;
  EXPECT_EQ(config_error(huge).substr(0, 53), "[config.json] impossible size: got about 1.11e+20 par");
  EXPECT_EQ(config_error(with(small("mixtral"), "num_hidden_layers", 9000000000000000000)).substr(0, 46),
            "[config.json num_hidden_layers] out of range: ");
}

TEST(BadConfig, AnyValueOfAnyKeyIsReadOrRefusedAsAConfigError) {
  const std::vector<Json> odd = {nullptr,
                                 true,
                                 -1,
                                 0,
                                 1,
                                 3,
                                 1e300,
                                 0.5,
                                 18446744073709551615u,
                                 "",
                                 "x",
                                 Json::array(),
                                 Json::array({-1}),
                                 Json::array({"x", nullptr}),
                                 Json::object(),
                                 Json{{"type", 3}},
                                 Json{{"rope_theta", -1.0}},
                                 Json{{"x", {{"y", 1}}}}};
  for (const std::string& family : kFamilies) {
    Json base = small(family);
    for (const char* key :
         {"layer_types", "quantization_config", "rope_parameters", "partial_rotary_factor"}) {
      base[key] = nullptr;
    }
    for (const auto& [key, ignored] : base.items()) {
      for (const Json& value : odd) {
        try {
          const ModelConfig model = read(with(base, key, value));
          EXPECT_GT(count_parameters(model).total, 0) << key << " " << value;
        } catch (const ConfigError&) {
        }
      }
    }
  }
}

}  // namespace
}  // namespace hetermoe
