// Reading and writing config.json of Hugging Face transformers. Key names, defaults of missing keys and which
// keys count follow the configuration classes of transformers 4 and 5 (configuration_<family>.py).
#include <algorithm>
#include <cmath>

#include "hetermoe/model/hf_reader.h"
#include "hetermoe/model/hf_rope.h"
#include "hetermoe/model/model_config.h"

namespace hetermoe {
namespace {

// No real model reaches these bounds. They keep products of sizes inside 64 bits, and they refuse nonsense
// before memory is allocated for it.
constexpr i64 kMaxExperts = i64{1} << 16;
constexpr i64 kMaxLayers = i64{1} << 14;
constexpr double kMaxParameters = 1e17;

/// What a configuration class assumes for keys that the file does not have.
struct Family {
  std::string model_type, architecture;
  i64 max_positions;
  double norm_eps, rope_theta;
  i64 num_kv_heads;  ///< 0 = as many as query heads
  double aux_loss_coef;
  bool normalize_top_k;
  QkNorm qk_norm;
  bool has_experts = true;
  i64 head_dim = 0;  ///< 0 = hidden size / heads
  i64 window = 0;    ///< 0 = every token attends to all before it
};

const std::vector<Family>& families() {
  static const std::vector<Family> all = {
      {"mixtral", "MixtralForCausalLM", 131072, 1e-5, 1e6, 8, 0.001, true, QkNorm::kNone},
      {"qwen3_moe", "Qwen3MoeForCausalLM", 32768, 1e-6, 1e4, 4, 0.001, false, QkNorm::kPerHead},
      {"olmoe", "OlmoeForCausalLM", 4096, 1e-5, 1e4, 0, 0.01, false, QkNorm::kWhole},
      {"deepseek_v2", "DeepseekV2ForCausalLM", 2048, 1e-6, 1e4, 0, 0, false, QkNorm::kNone},
      {"deepseek_v3", "DeepseekV3ForCausalLM", 4096, 1e-6, 1e4, 0, 0, true, QkNorm::kNone},
      {"llama", "LlamaForCausalLM", 2048, 1e-6, 1e4, 0, 0, true, QkNorm::kNone, false},
      {"qwen3", "Qwen3ForCausalLM", 32768, 1e-6, 1e4, 32, 0, true, QkNorm::kPerHead, false, 128, 4096},
      {"mistral", "MistralForCausalLM", 131072, 1e-6, 1e4, 8, 0, true, QkNorm::kNone, false, 0, 4096},
  };
  return all;
}

bool is_deepseek(const std::string& model_type) { return model_type.starts_with("deepseek_"); }

const Family& family_of(const HfReader& in) {
  const std::string type = in.read_or<std::string>({"model_type"}, "");
  std::string architecture;
  if (const Json* list = in.find("architectures"); list && list->is_array() && !list->empty()) {
    read_value((*list)[0], architecture, in.where("architectures[0]"));
  }
  for (const Family& family : families()) {
    if (type.empty() ? family.architecture == architecture : family.model_type == type) return family;
  }
  if (type.empty())
    fail<ConfigError>(in.where("model_type"), "missing.{}", known_names_hint("", known_model_types()));
  fail<ConfigError>(in.where("model_type"), "unknown model family: got \"{}\".{}", type,
                    known_names_hint(type, known_model_types()));
}

// --- the pieces of a model ---

void read_trunk(const HfReader& in, const Family& family, ModelConfig& out) {
  out.vocab = in.size({"vocab_size"});
  out.hidden = in.size({"hidden_size"});
  out.num_layers = in.size({"num_hidden_layers"}, kMaxLayers);
  out.max_positions = in.size_or({"max_position_embeddings"}, family.max_positions, kMaxPositions);
  out.norm_eps = in.read_or<double>({"rms_norm_eps"}, family.norm_eps, at_least(0));
  out.tie_embeddings = in.read_or<bool>({"tie_word_embeddings"}, false);
  out.init_std = in.read_or<double>({"initializer_range"}, 0.02, at_least(0));
  read_rope(in, family.rope_theta, out);
}

void read_gqa(const HfReader& in, const Family& family, ModelConfig& out) {
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
  out.qk_norm = family.qk_norm;
  if (family.model_type == "olmoe") out.clip_qkv = in.read_or<double>({"clip_qkv"}, 0.0, above(0));
}

void read_mla(const HfReader& in, ModelConfig& out) {
  out.attention = AttentionKind::kMla;
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
  // V2 always rotates interleaved pairs (complex form); V3 says so with a key.
  out.rope_interleaved = out.model_type == "deepseek_v2" || in.read_or<bool>({"rope_interleave"}, true);
}

void read_dense_layers(const HfReader& in, ModelConfig& out) {
  const auto layers = static_cast<std::size_t>(out.num_layers);
  out.dense_layer.assign(layers, false);
  const Range layer_range = between(0, static_cast<double>(out.num_layers - 1));
  if (is_deepseek(out.model_type)) {
    const i64 missing = out.model_type == "deepseek_v3" ? 3 : 0;
    const i64 num_dense =
        in.read_or<i64>({"first_k_dense_replace"}, missing, between(0, static_cast<double>(kMaxLayers)));
    for (i64 l = 0; l < std::min(num_dense, out.num_layers); ++l)
      out.dense_layer[static_cast<std::size_t>(l)] = true;
  } else if (out.model_type == "qwen3_moe") {
    const i64 step = in.size_or({"decoder_sparse_step"}, 1);
    for (std::size_t l = 0; l < layers; ++l)
      out.dense_layer[l] = (l + 1) % static_cast<std::size_t>(step) != 0;
    if (const Json* list = in.find("mlp_only_layers")) {
      std::vector<i64> only;
      read_value(*list, only, in.where("mlp_only_layers"), layer_range);
      for (i64 layer : only) out.dense_layer[static_cast<std::size_t>(layer)] = true;
    }
  }
  if (out.num_moe_layers() == 0) {
    fail<ConfigError>(in.where("num_hidden_layers"),
                      "all {} layers are dense, expected at least one with experts", out.num_layers);
  }
}

void read_dense(const HfReader& in, ModelConfig& out) {
  out.dense_layer.assign(static_cast<std::size_t>(out.num_layers), true);
  out.dense_hidden = in.size({"intermediate_size"});
}

void read_experts(const HfReader& in, ModelConfig& out) {
  const bool deepseek = is_deepseek(out.model_type);
  if (deepseek) {
    out.num_experts = in.size({"n_routed_experts", "num_experts", "num_local_experts"}, kMaxExperts);
  } else if (out.model_type == "mixtral") {
    out.num_experts = in.size({"num_local_experts", "num_experts"}, kMaxExperts);
  } else {
    out.num_experts = in.size({"num_experts", "num_local_experts"}, kMaxExperts);
  }
  out.top_k = in.size({"num_experts_per_tok"}, kMaxExperts);
  if (out.top_k > out.num_experts) {
    fail<ConfigError>(in.where("num_experts_per_tok"),
                      "more than there are experts: got {}, expected 1 to {}", out.top_k, out.num_experts);
  }
  const bool own_width = deepseek || out.model_type == "qwen3_moe";
  out.expert_hidden = own_width ? in.size({"moe_intermediate_size"}) : in.size({"intermediate_size"});
  read_dense_layers(in, out);
  if (out.num_moe_layers() < out.num_layers) out.dense_hidden = in.size({"intermediate_size"});
  if (deepseek) {
    // A missing key means the class default; null means none.
    const i64 missing = in.has("n_shared_experts") ? 0 : (out.model_type == "deepseek_v2" ? 2 : 1);
    out.num_shared_experts =
        in.read_or<i64>({"n_shared_experts"}, missing, between(0, static_cast<double>(kMaxExperts)));
  }
}

/// Group-limited choice: experts stand in num_expert_groups equal groups, of which top_k_groups are kept per
/// token.
void read_groups(const HfReader& in, GroupScore score, i64 missing_groups, i64 missing_kept,
                 ModelConfig& out) {
  out.num_expert_groups = in.size_or({"n_group"}, in.has("n_group") ? 1 : missing_groups, kMaxExperts);
  out.top_k_groups = in.size_or({"topk_group"}, in.has("topk_group") ? 1 : missing_kept, kMaxExperts);
  const i64 groups = out.num_expert_groups, kept = out.top_k_groups;
  if (out.num_experts % groups != 0) {
    fail<ConfigError>(in.where("n_group"), "does not divide the experts: got {}, expected a divisor of {}",
                      groups, out.num_experts);
  }
  if (kept > groups) {
    fail<ConfigError>(in.where("topk_group"), "more than there are groups: got {}, expected 1 to {}", kept,
                      groups);
  }
  if (kept == groups) return;  // nothing is masked: the plain choice
  const i64 size = out.num_experts / groups;
  if (score == GroupScore::kTopTwoSum && size < 2) {
    fail<ConfigError>(in.where("n_group"),
                      "groups of one expert have no two best scores: got {}, expected at most {}", groups,
                      out.num_experts / 2);
  }
  if (kept * size < out.top_k) {
    fail<ConfigError>(
        in.where("topk_group"),
        "keeps {} experts per token, fewer than num_experts_per_tok: got {}, expected at least {}",
        kept * size, kept, (out.top_k + size - 1) / size);
  }
  out.group_score = score;
}

void expect_text(const HfReader& in, const char* key, const std::string& expected, ModelConfig& out) {
  const std::string got = in.read_or<std::string>({key}, expected);
  if (got != expected)
    out.unsupported.push_back(fmt::format("{}: got \"{}\", expected \"{}\"", key, got, expected));
}
void expect_number(const HfReader& in, const char* key, double expected, ModelConfig& out) {
  const double got = in.read_or<double>({key}, expected);
  if (got != expected) out.unsupported.push_back(fmt::format("{}: got {}, expected {}", key, got, expected));
}
void expect_false(const HfReader& in, const char* key, ModelConfig& out) {
  if (in.read_or<bool>({key}, false))
    out.unsupported.push_back(fmt::format("{}: got true, expected false", key));
}

void read_router(const HfReader& in, const Family& family, ModelConfig& out) {
  out.aux_loss_coef = in.read_or<double>({"router_aux_loss_coef"}, family.aux_loss_coef, at_least(0));
  out.normalize_top_k = family.normalize_top_k;
  if (family.model_type == "qwen3_moe" || family.model_type == "olmoe" ||
      family.model_type == "deepseek_v3") {
    out.normalize_top_k = in.read_or<bool>({"norm_topk_prob"}, family.normalize_top_k);
  }
  if (family.model_type == "deepseek_v2") {
    out.routed_scale = in.read_or<double>({"routed_scaling_factor"}, 1.0, above(0));
    // DeepSeek's own code divides by the sum and then does not scale; the class in transformers ignores the
    // key.
    expect_false(in, "norm_topk_prob", out);
    expect_text(in, "scoring_func", "softmax", out);
    const std::string method = in.read_or<std::string>({"topk_method"}, "greedy");
    if (method == "group_limited_greedy") {
      read_groups(in, GroupScore::kMax, 1, 1, out);
    } else {
      expect_text(in, "topk_method", "greedy", out);
    }
  } else if (family.model_type == "deepseek_v3") {
    out.router_score = RouterScore::kSigmoid;
    out.router_bias = true;
    out.routed_scale = in.read_or<double>({"routed_scaling_factor"}, 2.5, above(0));
    expect_text(in, "scoring_func", "sigmoid", out);
    expect_text(in, "topk_method", "noaux_tc", out);
    read_groups(in, GroupScore::kTopTwoSum, 8, 4, out);
  }
}

/// Per layer, as Qwen3 has it: layer_types, or the layers from max_window_layers on.
void read_sliding_layers(const HfReader& in, ModelConfig& out) {
  const auto layers = static_cast<std::size_t>(out.num_layers);
  const Json* types = in.find("layer_types");
  if (types == nullptr) {
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

/// Sliding windows: Mixtral's and Mistral's key acts when it is a number, Qwen's only with
/// use_sliding_window. A window as long as the context changes nothing.
void read_window(const HfReader& in, const Family& family, ModelConfig& out) {
  const bool qwen = out.model_type == "qwen3_moe" || out.model_type == "qwen3";
  const bool active = qwen ? in.read_or<bool>({"use_sliding_window"}, false)
                           : out.model_type == "mixtral" || out.model_type == "mistral";
  const i64 missing = in.has("sliding_window") ? 0 : family.window;
  const i64 window =
      in.read<i64>({"sliding_window"}, between(1, static_cast<double>(kMaxPositions))).value_or(missing);
  if (active && window > 0 && window < out.max_positions) {
    out.sliding_window = window;
    if (out.model_type == "qwen3") read_sliding_layers(in, out);
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

/// Settings that every family shares and whose other values are not implemented.
void check_arithmetic(const HfReader& in, ModelConfig& out) {
  expect_text(in, "hidden_act", "silu", out);
  expect_false(in, "attention_bias", out);
  expect_false(in, "mlp_bias", out);
  expect_number(in, "attention_dropout", 0, out);
  expect_number(in, "router_jitter_noise", 0, out);
  expect_number(in, "partial_rotary_factor", 1, out);
  if (is_deepseek(out.model_type)) expect_number(in, "moe_layer_freq", 1, out);
  if (const Json* quantization = in.find("quantization_config")) {
    const auto method = quantization->find("quant_method");
    // FP8 with a factor for each block: weights are read as the products, and what is trained is not
    // quantised.
    if (method != quantization->end() && *method == "fp8" && quantization->contains("weight_block_size"))
      return;
    out.unsupported.push_back(
        fmt::format("quantization_config: got {}, expected unquantised weights",
                    method == quantization->end() ? std::string("one") : method->dump()));
  }
}

/// Each size has a bound of its own. This bounds the product of all sizes as well, because sums over
/// parameters would overflow otherwise.
void check_total(const std::string& where, const ModelConfig& model) {
  const double moe = static_cast<double>(model.num_moe_layers());
  const double dense = static_cast<double>(model.num_layers) - moe;
  const auto h = static_cast<double>(model.hidden);
  const double widths =
      static_cast<double>(model.num_experts) * static_cast<double>(model.expert_hidden) +
      static_cast<double>(model.num_shared_experts) * static_cast<double>(model.expert_hidden);
  const double per_head =
      2 * static_cast<double>(model.head_dim) + 2 * static_cast<double>(model.value_dim());
  const double low_rank = static_cast<double>(model.q_lora_rank) + static_cast<double>(model.kv_lora_rank);
  const double attention = static_cast<double>(model.num_heads) * per_head * (h + low_rank);
  const double total = moe * 3 * h * widths + dense * 3 * h * static_cast<double>(model.dense_hidden) +
                       static_cast<double>(model.num_layers) * attention +
                       2 * h * static_cast<double>(model.vocab);
  if (total > kMaxParameters) {
    fail<ConfigError>(where, "impossible size: got about {:.3g} parameters, expected at most {:.0e}", total,
                      kMaxParameters);
  }
}

// --- writing ---

void write_deepseek(const ModelConfig& m, Json& out) {
  i64 num_dense = 0;
  while (num_dense < m.num_layers && !m.is_moe(num_dense)) ++num_dense;
  out["moe_intermediate_size"] = m.expert_hidden;
  out["intermediate_size"] = m.dense_hidden > 0 ? m.dense_hidden : m.expert_hidden;
  out["first_k_dense_replace"] = num_dense;
  out["n_routed_experts"] = m.num_experts;
  out["n_shared_experts"] = m.num_shared_experts;
  out["routed_scaling_factor"] = m.routed_scale;
  out["n_group"] = m.num_expert_groups;
  out["topk_group"] = m.top_k_groups;
  out["q_lora_rank"] = m.q_lora_rank == 0 ? Json(nullptr) : Json(m.q_lora_rank);
  out["kv_lora_rank"] = m.kv_lora_rank;
  out["qk_nope_head_dim"] = m.qk_nope_dim;
  out["qk_rope_head_dim"] = m.qk_rope_dim;
  out["v_head_dim"] = m.v_dim;
  if (m.model_type == "deepseek_v3") {
    out["scoring_func"] = "sigmoid";
    out["topk_method"] = "noaux_tc";
    out["norm_topk_prob"] = m.normalize_top_k;
    out["rope_interleave"] = m.rope_interleaved;
  } else {
    out["scoring_func"] = "softmax";
    out["topk_method"] = m.num_expert_groups > 1 ? "group_limited_greedy" : "greedy";
    out["norm_topk_prob"] = false;
  }
  if (m.aux_loss_coef > 0) out["router_aux_loss_coef"] = m.aux_loss_coef;
}

void write_window(const ModelConfig& m, Json& out) {
  out["sliding_window"] = m.sliding_window > 0 ? Json(m.sliding_window) : Json(nullptr);
  if (m.model_type.starts_with("qwen3") && m.sliding_window > 0) out["use_sliding_window"] = true;
  if (m.sliding_layer.empty()) return;
  out["layer_types"] = Json::array();
  for (const bool slides : m.sliding_layer)
    out["layer_types"].push_back(slides ? "sliding_attention" : "full_attention");
}

void write_gqa(const ModelConfig& m, Json& out) {
  out["head_dim"] = m.head_dim;
  if (m.model_type == "mixtral" || m.model_type == "mistral" || m.sliding_window > 0) write_window(m, out);
  if (m.num_experts == 0) {
    out["intermediate_size"] = m.dense_hidden;
    return;
  }
  out["router_aux_loss_coef"] = m.aux_loss_coef;
  if (m.model_type == "mixtral") {
    out["intermediate_size"] = m.expert_hidden;
    out["num_local_experts"] = m.num_experts;
    return;
  }
  out["num_experts"] = m.num_experts;
  out["norm_topk_prob"] = m.normalize_top_k;
  if (m.model_type == "olmoe") {
    out["intermediate_size"] = m.expert_hidden;
    out["clip_qkv"] = m.clip_qkv > 0 ? Json(m.clip_qkv) : Json(nullptr);
    return;
  }
  out["moe_intermediate_size"] = m.expert_hidden;
  out["intermediate_size"] = m.dense_hidden > 0 ? m.dense_hidden : m.expert_hidden;
  out["decoder_sparse_step"] = 1;
  out["mlp_only_layers"] = Json::array();
  for (i64 l = 0; l < m.num_layers; ++l) {
    if (!m.is_moe(l)) out["mlp_only_layers"].push_back(l);
  }
}

}  // namespace

const std::vector<std::string>& known_model_types() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const Family& family : families()) all.push_back(family.model_type);
    return all;
  }();
  return names;
}

ModelConfig model_from_hf(const Json& config, const std::string& where) {
  const HfReader in(config, where);
  const Family& family = family_of(in);
  ModelConfig out;
  out.name = family.model_type;
  out.model_type = family.model_type;
  read_trunk(in, family, out);
  if (is_deepseek(out.model_type)) {
    read_mla(in, out);
  } else {
    read_gqa(in, family, out);
  }
  if (family.has_experts) {
    read_experts(in, out);
    read_router(in, family, out);
  } else {
    read_dense(in, out);
  }
  read_window(in, family, out);
  check_rope(in, out);
  check_arithmetic(in, out);
  check_total(where, out);
  return out;
}

Json to_hf(const ModelConfig& model) {
  check_trainable(model);
  Json out;
  for (const Family& family : families()) {
    if (family.model_type == model.model_type) out["architectures"] = Json::array({family.architecture});
  }
  HM_CHECK(!out.empty(), "model_type {}", model.model_type);
  out["model_type"] = model.model_type;
  out["vocab_size"] = model.vocab;
  out["hidden_size"] = model.hidden;
  out["num_hidden_layers"] = model.num_layers;
  out["num_attention_heads"] = model.num_heads;
  out["num_key_value_heads"] = model.num_kv_heads;
  if (model.num_experts > 0) out["num_experts_per_tok"] = model.top_k;
  out["max_position_embeddings"] = model.max_positions;
  out["hidden_act"] = "silu";
  out["rms_norm_eps"] = model.norm_eps;
  write_rope(model, out);
  out["initializer_range"] = model.init_std;
  out["tie_word_embeddings"] = model.tie_embeddings;
  out["attention_bias"] = false;
  out["attention_dropout"] = 0.0;
  if (model.attention == AttentionKind::kMla) {
    write_deepseek(model, out);
  } else {
    write_gqa(model, out);
  }
  return out;
}

}  // namespace hetermoe
