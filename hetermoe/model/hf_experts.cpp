// Keys of a config.json about experts and routers.
#include <fmt/format.h>

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/model/hf_keys.h"

namespace hetermoe {
namespace {

Range up_to(i64 most) { return between(0, static_cast<double>(most)); }

void read_listed_layers(const HfReader& in, ModelConfig& out) {
  const i64 step = in.size_or({"decoder_sparse_step"}, 1);
  for (i64 l = 0; l < out.num_layers; ++l) out.dense_layer[idx(l)] = (l + 1) % step != 0;
  const Json* list = in.find("mlp_only_layers");
  if (list == nullptr) return;
  std::vector<i64> only;
  read_value(*list, only, in.where("mlp_only_layers"), up_to(out.num_layers - 1));
  for (const i64 layer : only) out.dense_layer[idx(layer)] = true;
}

void read_layer_interval(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  const i64 first = in.read_or<i64>({"moe_layer_start_index"}, family.first_dense, up_to(kMaxLayers));
  i64 last = in.read_or<i64>({"moe_layer_end_index"}, -1, between(-1, static_cast<double>(kMaxLayers)));
  if (last == -1) last = out.num_layers - 1;
  const i64 interval = in.size_or({"moe_layer_interval"}, 1);
  for (i64 l = 0; l < out.num_layers; ++l)
    out.dense_layer[idx(l)] = l < first || l > last || (l + 1) % interval != 0;
}

void read_dense_layers(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  out.dense_layer.assign(idx(out.num_layers), false);
  switch (family.dense_layers) {
    case DenseLayers::kNone:
      break;
    case DenseLayers::kFirst: {
      const i64 first = in.read_or<i64>({"first_k_dense_replace"}, family.first_dense, up_to(kMaxLayers));
      for (i64 l = 0; l < std::min(first, out.num_layers); ++l) out.dense_layer[idx(l)] = true;
      break;
    }
    case DenseLayers::kListed:
      read_listed_layers(in, out);
      break;
    case DenseLayers::kInterval:
      read_layer_interval(in, family, out);
      break;
  }
  if (out.num_moe_layers() == 0) {
    fail<ConfigError>(in.where("num_hidden_layers"),
                      "all {} layers are dense, expected at least one with experts", out.num_layers);
  }
}

void read_shared_experts(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  out.num_shared_experts = family.shared_experts;
  if (!family.shared_experts_key.empty()) {
    // A missing key means the class default; null means none.
    const char* key = family.shared_experts_key.c_str();
    const i64 missing = in.has(key) ? 0 : family.shared_experts;
    out.num_shared_experts = in.read_or<i64>({key}, missing, up_to(kMaxExperts));
  }
  if (!family.shared_width_key.empty())
    out.shared_width = in.size_or({family.shared_width_key.c_str()}, family.shared_width);
  out.shared_gate = family.shared_gate;
}

/// Biases lie in whole rows behind the matrices, see ModelConfig::gate_up_rows().
void read_expert_biases(const ModelFamily& family, ModelConfig& out) {
  out.expert_bias = family.expert_bias;
  if (!out.expert_bias || (2 * out.expert_hidden % out.hidden == 0 && out.hidden % out.expert_hidden == 0))
    return;
  out.unsupported.push_back(
      fmt::format("{}: got {}, expected a divisor of hidden_size ({}) of which twice is a multiple of it, as "
                  "experts have biases",
                  family.expert_width_key, out.expert_hidden, out.hidden));
}

void read_activation(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  if (family.swiglu_limit == 0) return;
  out.swiglu_limit = in.read_or<double>({"swiglu_limit"}, family.swiglu_limit, above(0));
  out.swiglu_alpha = in.read_or<double>({"swiglu_alpha"}, family.swiglu_alpha, above(0));
}

/// Group-limited choice: experts stand in num_expert_groups equal groups, of which top_k_groups are kept per
/// token.
void read_groups(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  out.num_expert_groups = in.size_or({"n_group"}, in.has("n_group") ? 1 : family.expert_groups, kMaxExperts);
  out.top_k_groups = in.size_or({"topk_group"}, in.has("topk_group") ? 1 : family.kept_groups, kMaxExperts);
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
  if (family.group_score == GroupScore::kTopTwoSum && size < 2) {
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
  out.group_score = family.group_score;
}

void read_router(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  const auto number = [&](const std::string& key, double missing, const Range& range) {
    return key.empty() ? missing : in.read_or<double>({key.c_str()}, missing, range);
  };
  out.aux_loss_coef = number(family.aux_loss_key, family.aux_loss_coef, at_least(0));
  if (!family.aux_loss_switch.empty() && !in.read_or<bool>({family.aux_loss_switch.c_str()}, false))
    out.aux_loss_coef = 0;
  out.router_score = family.router_score;
  out.router_bias = family.router_bias;
  out.router_linear_bias = family.router_linear_bias;
  out.normalize_top_k = family.normalize_top_k;
  if (!family.normalize_key.empty())
    out.normalize_top_k = in.read_or<bool>({family.normalize_key.c_str()}, family.normalize_top_k);
  out.least_weight_sum = number(family.least_weight_sum_key, family.least_weight_sum, at_least(0));
  out.routed_scale = number(family.routed_scale_key, family.routed_scale, above(0));
  if (family.group_score == GroupScore::kNone) return;
  const std::string plain = "greedy";
  if (family.group_method.empty() || in.read_or<std::string>({"topk_method"}, plain) == family.group_method) {
    read_groups(in, family, out);
  } else {
    expect_key(in, {"topk_method", plain}, out);
  }
}

}  // namespace

void read_experts(const HfReader& in, const ModelFamily& family, ModelConfig& out) {
  out.num_experts = in.size(family.experts_keys, kMaxExperts);
  out.top_k = in.size(family.top_k_keys, kMaxExperts);
  if (out.top_k > out.num_experts) {
    fail<ConfigError>(in.where(family.top_k_keys.front()),
                      "more than there are experts: got {}, expected 1 to {}", out.top_k, out.num_experts);
  }
  out.expert_hidden = in.size({family.expert_width_key.c_str()});
  read_dense_layers(in, family, out);
  if (out.num_moe_layers() < out.num_layers) out.dense_hidden = in.size({"intermediate_size"});
  read_shared_experts(in, family, out);
  read_expert_biases(family, out);
  read_activation(in, family, out);
  read_router(in, family, out);
}

}  // namespace hetermoe
