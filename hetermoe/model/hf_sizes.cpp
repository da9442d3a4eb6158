// Sizes of models whose families are not implemented, from keys that most config.json have in common.
#include <fmt/ranges.h>

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/hf_keys.h"

namespace hetermoe {
namespace {

/// Reads sizes and remembers from which keys.
class SizeReader {
 public:
  SizeReader(const Json& config, const std::string& where) : in_(config, where) {}
  const HfReader& in() const { return in_; }

  /// The first of the names that the file has; 0 where it has none.
  i64 find(const Names& names, i64 max = kMaxWidth) {
    for (const char* name : names) {
      if (!in_.find(name)) continue;
      used_.emplace_back(name);
      return in_.size({name}, max);
    }
    return 0;
  }
  i64 need(const Names& names, i64 max = kMaxWidth) {
    const i64 found = find(names, max);
    return found > 0 ? found : in_.size(names, max);
  }
  /// Likewise, 0 is fine.
  i64 count(const Names& names, i64 max) {
    for (const char* name : names) {
      if (!in_.find(name)) continue;
      used_.emplace_back(name);
      return in_.read_or<i64>({name}, 0, between(0, static_cast<double>(max)));
    }
    return 0;
  }
  const std::vector<std::string>& used() const { return used_; }

 private:
  HfReader in_;
  std::vector<std::string> used_;
};

void read_attention(SizeReader& sizes, ModelConfig& out) {
  out.num_heads = sizes.need({"num_attention_heads", "n_head", "n_heads"});
  out.kv_lora_rank = sizes.find({"kv_lora_rank"});
  if (out.kv_lora_rank > 0) {
    out.attention = AttentionKind::kMla;
    out.num_kv_heads = out.num_heads;
    out.q_lora_rank = sizes.find({"q_lora_rank"});
    out.qk_nope_dim = sizes.need({"qk_nope_head_dim"});
    out.qk_rope_dim = sizes.need({"qk_rope_head_dim"});
    out.v_dim = sizes.need({"v_head_dim"});
    out.head_dim = out.qk_nope_dim + out.qk_rope_dim;
    return;
  }
  out.num_kv_heads = sizes.find({"num_key_value_heads", "num_kv_heads"});
  if (out.num_kv_heads == 0) out.num_kv_heads = out.num_heads;
  out.head_dim = sizes.find({"head_dim"});
  if (out.head_dim == 0) out.head_dim = std::max<i64>(out.hidden / out.num_heads, 1);
}

void read_moe(SizeReader& sizes, ModelConfig& out) {
  const std::string where = sizes.in().where("num_experts_per_tok");
  out.top_k = sizes.need(
      {"num_experts_per_tok", "moe_k", "num_experts_per_token", "moe_topk", "top_k_experts"}, kMaxExperts);
  if (out.top_k > out.num_experts)
    fail<ConfigError>(where, "more than there are experts: got {}, expected 1 to {}", out.top_k,
                      out.num_experts);
  out.expert_hidden = sizes.need({"moe_intermediate_size", "expert_ffn_hidden_size", "moe_ffn_hidden_size",
                                  "intermediate_size", "ffn_dim"});
  out.num_shared_experts =
      sizes.count({"n_shared_experts", "num_shared_experts", "moe_num_shared_experts"}, kMaxExperts);
  const i64 first = sizes.count({"first_k_dense_replace", "moe_layer_start_index"}, kMaxLayers);
  for (i64 l = 0; l < std::min(first, out.num_layers - 1); ++l) out.dense_layer[idx(l)] = true;
  if (out.num_moe_layers() < out.num_layers)
    out.dense_hidden = sizes.need({"intermediate_size", "ffn_dim", "n_inner"});
}

std::string assumptions(const ModelConfig& model, const std::vector<std::string>& used) {
  std::string routing;
  if (model.num_experts > 0) routing = "; softmax router; experts in all layers";
  const i64 dense = model.num_layers - model.num_moe_layers();
  if (model.num_experts > 0 && dense > 0) routing += fmt::format(" but the first {}", dense);
  return fmt::format(
      "model_type \"{}\" is not trained here; sizes read from {}; assumed: gated MLPs of three matrices, "
      "causal attention to all tokens before, no biases, no norms of queries and keys, {}{}",
      model.model_type, fmt::join(used, ", "), model.tie_embeddings ? "tied embeddings" : "untied embeddings",
      routing);
}

}  // namespace

ModelConfig any_model_from_hf(const Json& config, const std::string& where) {
  SizeReader sizes(config, where);
  const std::string type = sizes.in().read_or<std::string>({"model_type"}, "");
  if (type.empty() || find_family(type) != nullptr) return model_from_hf(config, where);
  refuse_nested(sizes.in(), type);
  ModelConfig out;
  out.name = out.model_type = printable(type);
  out.hidden = sizes.need({"hidden_size", "n_embd", "d_model"});
  out.num_layers = sizes.need({"num_hidden_layers", "n_layer", "num_layers", "n_layers"}, kMaxLayers);
  out.vocab = sizes.need({"vocab_size"});
  out.max_positions = sizes.find({"max_position_embeddings", "n_positions", "max_seq_len"}, kMaxPositions);
  out.tie_embeddings = sizes.in().read_or<bool>({"tie_word_embeddings"}, false);
  read_attention(sizes, out);
  out.num_experts =
      sizes.find({"num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"}, kMaxExperts);
  out.dense_layer.assign(idx(out.num_layers), out.num_experts == 0);
  if (out.num_experts > 0)
    read_moe(sizes, out);
  else
    out.dense_hidden = sizes.need({"intermediate_size", "ffn_dim", "n_inner", "ffn_hidden_size"});
  check_total_size(where, out);
  out.unsupported = {fmt::format("model_type: got \"{}\", expected one of {}", out.model_type,
                                 fmt::join(known_model_types(), ", "))};
  out.assumed = assumptions(out, sizes.used());
  return out;
}

}  // namespace hetermoe
