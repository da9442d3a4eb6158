// Reading config.json of Hugging Face transformers: what the keys of a family's row mean.
#include <algorithm>
#include <cmath>

#include "hetermoe/model/family.h"
#include "hetermoe/model/hf_keys.h"
#include "hetermoe/model/hf_reader.h"
#include "hetermoe/model/hf_rope.h"
#include "hetermoe/model/model_config.h"

namespace hetermoe {
namespace {

std::string digits_of(std::string_view text) {
  std::string out;
  for (const char c : text)
    if (c >= '0' && c <= '9') out += c;
  return out;
}

/// The known families, and the nearest name of the same version: deepseek_v32 is no slip for deepseek_v2.
std::string known_families_hint(const std::string& type) {
  std::vector<std::string> same_version;
  for (const std::string& name : known_model_types())
    if (digits_of(name) == digits_of(type)) same_version.push_back(name);
  return known_names_hint(type, known_model_types(), same_version);
}

const ModelFamily& family_in(const HfReader& in) {
  const std::string type = in.read_or<std::string>({"model_type"}, "");
  std::string architecture;
  if (const Json* list = in.find("architectures"); list && list->is_array() && !list->empty()) {
    read_value((*list)[0], architecture, in.where("architectures[0]"));
  }
  for (const ModelFamily& family : families()) {
    if (type.empty() ? family.architecture == architecture : family.model_type == type) return family;
  }
  refuse_nested(in, type);
  if (type.empty())
    fail<ConfigError>(in.where("model_type"), "missing.{}", known_names_hint("", known_model_types()));
  fail<ConfigError>(in.where("model_type"), "unknown model family: got \"{}\".{}", type,
                    known_families_hint(type));
}

// --- the pieces of a model ---

void read_trunk(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  out.vocab = in.size({"vocab_size"});
  out.hidden = in.size({"hidden_size"});
  out.num_layers = in.size({"num_hidden_layers"}, kMaxLayers);
  out.max_positions = in.size_or({"max_position_embeddings"}, family.max_positions, kMaxPositions);
  out.norm_eps = in.read_or<double>({"rms_norm_eps"}, family.norm_eps, at_least(0));
  out.tie_embeddings = in.read_or<bool>({"tie_word_embeddings"}, family.tie_embeddings);
  out.init_std = in.read_or<double>({"initializer_range"}, 0.02, at_least(0));
  read_rope(in, family, out);
}

void read_gqa(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  out.num_heads = in.size({"num_attention_heads"});
  // A null means as many as query heads; a missing key means the class default.
  const bool given = in.has("num_key_value_heads");
  const i64 missing = given || family.num_kv_heads == 0 ? out.num_heads : family.num_kv_heads;
  out.num_kv_heads = in.size_or({"num_key_value_heads"}, missing);
  if (out.num_heads % out.num_kv_heads != 0) {
    fail<ConfigError>(in.where("num_key_value_heads"),
                      "does not divide num_attention_heads: got {}{}, expected a divisor of {}",
                      out.num_kv_heads, given ? "" : " (default of a missing key)", out.num_heads);
  }
  out.head_dim = in.size_or({"head_dim"}, in.has("head_dim") ? 0 : family.head_dim);
  if (out.head_dim == 0) {
    if (out.hidden % out.num_heads != 0) {
      fail<ConfigError>(in.where("num_attention_heads"),
                        "does not divide hidden_size: got {}, expected a divisor of {}, or give head_dim",
                        out.num_heads, out.hidden);
    }
    out.head_dim = out.hidden / out.num_heads;
  }
  if (out.head_dim % 2 != 0) {
    fail<ConfigError>(in.where("head_dim"),
                      "rotary embedding turns pairs of elements: got {}, expected an even number",
                      out.head_dim);
  }
  out.rotary_dim = rotary_dim(in, family, out.head_dim);
  out.rope_interleaved = family.rope_turn == RopeTurn::kPairs;
  const auto flag = [&](const std::string& key, bool missing) {
    return in.read_or<bool>({key.c_str()}, missing);
  };
  if (family.qk_norm_key.empty() || flag(family.qk_norm_key, false)) out.qk_norm = family.qk_norm;
  out.qkv_bias = family.qkv_bias_key.empty() ? family.qkv_bias : flag(family.qkv_bias_key, family.qkv_bias);
  out.output_bias = family.output_bias && out.qkv_bias;
  out.attention_sinks = family.attention_sinks;
  if (!family.clip_key.empty()) out.clip_qkv = in.read_or<double>({family.clip_key.c_str()}, 0.0, above(0));
}

void read_mla(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  out.num_heads = out.num_kv_heads = in.size({"num_attention_heads"});
  // A missing key means the class default of 1536; only null means no low-rank query.
  out.q_lora_rank = in.size_or({"q_lora_rank"}, in.has("q_lora_rank") ? 0 : 1536);
  out.kv_lora_rank = in.size({"kv_lora_rank"});
  out.qk_nope_dim = in.size({"qk_nope_head_dim"});
  out.qk_rope_dim = in.size({"qk_rope_head_dim"});
  out.v_dim = in.size({"v_head_dim"});
  out.head_dim = out.qk_nope_dim + out.qk_rope_dim;
  if (out.qk_rope_dim % 2 != 0) {
    fail<ConfigError>(in.where("qk_rope_head_dim"),
                      "rotary embedding turns pairs of elements: got {}, expected an even number",
                      out.qk_rope_dim);
  }
  out.rope_interleaved = family.rope_turn == RopeTurn::kPairs || in.read_or<bool>({"rope_interleave"}, true);
}

void read_dense(const HfReader& in, ModelConfig& out) {
  out.dense_layer.assign(static_cast<std::size_t>(out.num_layers), true);
  out.dense_hidden = in.size({"intermediate_size"});
}

/// Per layer: layer_types, or as the family has it.
void read_sliding_layers(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  const auto layers = static_cast<std::size_t>(out.num_layers);
  const Json* types = in.find("layer_types");
  if (types == nullptr && family.windows == WindowKeys::kNumberAndLayer) {
    for (std::size_t l = 0; l < layers; ++l) out.sliding_layer.push_back(l % 2 == 0);
  } else if (types == nullptr) {
    const i64 first = in.read_or<i64>({"max_window_layers"}, 28, between(0, static_cast<double>(kMaxWidth)));
    for (std::size_t l = 0; l < layers; ++l) out.sliding_layer.push_back(static_cast<i64>(l) >= first);
  } else {
    std::vector<std::string> names;
    read_value(*types, names, in.where("layer_types"));
    if (names.size() != layers)
      fail<ConfigError>(in.where("layer_types"), "got {} entries, expected one for each of the {} layers",
                        names.size(), layers);
    for (const std::string& name : names) {
      out.sliding_layer.push_back(name == "sliding_attention");
      if (name == "sliding_attention" || name == "full_attention") continue;
      out.unsupported.push_back(
          fmt::format("layer_types: got \"{}\", expected \"full_attention\" or \"sliding_attention\"", name));
    }
  }
  if (std::find(out.sliding_layer.begin(), out.sliding_layer.end(), true) != out.sliding_layer.end()) return;
  out.sliding_layer.clear();
  out.sliding_window = 0;
}

/// A window as long as the context changes nothing.
void read_window(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  const bool active = act_by_number(family.windows) || (family.windows != WindowKeys::kNone &&
                                                        in.read_or<bool>({"use_sliding_window"}, false));
  const i64 missing = in.has("sliding_window") ? 0 : family.window;
  const Range positions = between(1, static_cast<double>(kMaxPositions));
  const i64 window = active ? in.read<i64>({"sliding_window"}, positions).value_or(missing) : 0;
  if (window > 0 && window < out.max_positions) {
    out.sliding_window = window;
    if (differ_by_layer(family.windows)) read_sliding_layers(in, family, out);
    return;
  }
  if (const Json* types = in.find("layer_types"); types && types->is_array()) {
    for (const Json& type : *types) {
      if (type == "full_attention") continue;
      out.unsupported.push_back(fmt::format("layer_types: got {}, expected \"full_attention\"", type.dump()));
      break;
    }
  }
}

/// Settings whose other values are not implemented: those that every family shares, and its own.
void check_arithmetic(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  for (const ExpectedKey& key : family.expected) expect_key(in, key, out);
  expect_key(in, {"hidden_act", "silu"}, out);
  if (family.qkv_bias_key != "attention_bias") expect_key(in, {"attention_bias", false}, out);
  expect_key(in, {"mlp_bias", false}, out);
  expect_key(in, {"attention_dropout", 0}, out);
  expect_key(in, {"router_jitter_noise", 0}, out);
  if (!family.rotary_share) expect_key(in, {"partial_rotary_factor", 1}, out);
  if (const Json* quantization = in.find("quantization_config")) {
    const auto method = quantization->find("quant_method");
    // FP8 with a factor for each block: weights are read as the products, and what is trained is not
    // quantised.
    if (method != quantization->end() && *method == "fp8" && quantization->contains("weight_block_size"))
      return;
    // Only experts are, in blocks of 32 with a power of two each; likewise.
    if (method != quantization->end() && *method == "mxfp4" && family.interleaved_experts) return;
    out.unsupported.push_back(
        fmt::format("quantization_config: got {}, expected unquantised weights",
                    method == quantization->end() ? std::string("one") : method->dump()));
  }
}

}  // namespace

ModelConfig model_from_hf(const Json& config, const std::string& where) {
  const HfReader in(config, where);
  const ModelFamily& family = family_in(in);
  ModelConfig out;
  out.name = out.model_type = family.model_type;
  out.attention = family.attention;
  read_trunk(in, family, out);
  if (family.attention == AttentionKind::kMla) {
    read_mla(in, family, out);
  } else {
    read_gqa(in, family, out);
  }
  if (family.has_experts) {
    read_experts(in, family, out);
  } else {
    read_dense(in, out);
  }
  read_window(in, family, out);
  check_rope(in, out);
  check_arithmetic(in, family, out);
  check_total_size(where, out);
  return out;
}

}  // namespace hetermoe
