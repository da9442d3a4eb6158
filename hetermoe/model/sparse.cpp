#include "hetermoe/model/sparse.h"

#include <fmt/ranges.h>

#include "hetermoe/base/index.h"
#include "hetermoe/base/words.h"
#include "hetermoe/model/family.h"
#include "hetermoe/model/growth.h"
#include "hetermoe/model/layer_interval.h"

namespace hetermoe {
namespace {

constexpr const char* kKey = "--layers";

std::vector<i64> dense_layers(const ModelConfig& model) {
  std::vector<i64> out;
  for (i64 l = 0; l < model.num_layers; ++l) {
    if (!model.is_moe(l)) out.push_back(l);
  }
  return out;
}

/// Those that shall have experts. Throws ConfigError for one that is not there or has them.
std::vector<bool> wanted_layers(const ModelConfig& model, const std::vector<i64>& layers) {
  if (dense_layers(model).empty())
    fail<ConfigError>(kKey, "is given, but {} has no dense layers: expected --factor", model.name);
  std::vector<bool> out(idx(model.num_layers), false);
  for (const i64 layer : layers.empty() ? dense_layers(model) : layers) {
    if (layer < 0 || layer >= model.num_layers)
      fail<ConfigError>(kKey, "got {}, but the layers of {} are 0 to {}", layer, model.name,
                        model.num_layers - 1);
    if (model.is_moe(layer)) {
      fail<ConfigError>(kKey,
                        "got {}, which has experts already, and {} has one number of experts for all layers: "
                        "expected dense layers ({}), or --factor without --layers",
                        layer, model.model_type, fmt::join(dense_layers(model), ", "));
    }
    out[idx(layer)] = true;
  }
  return out;
}

void check_config_says(const ModelConfig& model) {
  const DenseLayers keys = family_of(model).dense_layers;
  if (keys == DenseLayers::kNone && model.num_moe_layers() < model.num_layers) {
    fail<ConfigError>(
        kKey,
        "leaves {} dense, but llama and mistral become mixtral, whose config.json has no dense layers: "
        "expected all layers",
        counted(model.num_layers - model.num_moe_layers(), "layer"));
  }
  if (keys == DenseLayers::kInterval && !moe_interval(model)) {
    fail<ConfigError>(kKey,
                      "leaves layers with experts that are no regular interval, and {} has experts in every "
                      "moe_layer_interval-th layer of one range: expected such layers",
                      model.model_type);
  }
  for (i64 l = 1; l < model.num_layers; ++l) {
    if (keys != DenseLayers::kFirst || model.is_moe(l) || !model.is_moe(l - 1)) continue;
    fail<ConfigError>(kKey,
                      "leaves layer {} dense behind layer {}, but {} has dense layers at the beginning alone "
                      "(first_k_dense_replace): expected it as well",
                      l, l - 1, model.model_type);
  }
}

/// The fewest shards of the MLP, so that top-k experts are whole copies of it.
i64 shards_of(const ModelConfig& model) {
  const i64 rest = std::max<i64>(model.dense_hidden - model.shared_hidden(), 1);
  const i64 least = (rest + model.expert_hidden - 1) / model.expert_hidden;
  for (i64 n = least; n <= model.top_k; ++n) {
    if (model.top_k % n != 0 || model.num_experts % n != 0) continue;
    if (n == 1 || !model.has_expert_groups()) return n;
    // A copy fills the groups that a token keeps: they stand or fall together.
    const i64 kept = model.top_k_groups, size = model.num_experts / model.num_expert_groups;
    if (model.num_expert_groups % kept == 0 && n % kept == 0 && size % (n / kept) == 0) return n;
  }
  fail<ConfigError>(
      kKey,
      "cannot be: an MLP of width {} has {} shards beside the shared expert, at {} for an expert, which {} "
      "experts, {} for a token, in {} groups of which {} count do not hold as whole copies. Give --layers "
      "that leave it out",
      model.dense_hidden, least, model.expert_hidden, model.num_experts, model.top_k, model.num_expert_groups,
      model.top_k_groups);
}

/// Where a copy has its shards.
struct Place {
  i64 copy = 0, shard = 0;
};
Place place_of(const ModelConfig& model, i64 shards, ExpertId expert) {
  if (shards == 1 || !model.has_expert_groups()) return {expert / shards, expert % shards};
  const i64 kept = model.top_k_groups, size = model.num_experts / model.num_expert_groups;
  const i64 part = shards / kept;  // of a copy in each of the groups that are kept with it
  const i64 group = expert / size, i = expert % size;
  return {group / kept * (size / part) + i / part, group % kept * part + i % part};
}

}  // namespace

i64 Sparse::copy_of(ExpertId expert) const { return place_of(after, shards, expert).copy; }
i64 Sparse::shard_of(ExpertId expert) const { return place_of(after, shards, expert).shard; }
double Sparse::scale() const { return real(shards) / after.routed_scale; }

Sparse plan_sparse(const ModelConfig& model, const SparseOptions& options) {
  check_trainable(model);
  Sparse out{.before = model, .after = model};
  if (model.num_experts == 0 || options.experts > 0)
    out.after = sparse_model(model, options.experts, options.top_k);
  const std::vector<bool> wanted = wanted_layers(model, options.layers);
  for (std::size_t l = 0; l < wanted.size(); ++l)
    out.after.dense_layer[l] = model.dense_layer[l] && !wanted[l];
  out.after.dense_hidden = model.dense_hidden;
  check_config_says(out.after);
  if (!out.after.normalize_top_k) {
    fail<ConfigError>(
        kKey,
        "would make {} another function: its routing weights are not normalised, so the experts "
        "of a token do not add up to the MLP; expected a family that normalises them (qwen3_moe, "
        "deepseek_v3 with norm_topk_prob)",
        model.name);
  }
  if (out.after.shared_gate) {
    fail<ConfigError>(kKey,
                      "would make {} another function: a gate multiplies what its shared expert adds, so the "
                      "experts of a token do not add up to the MLP; expected a family without such a gate",
                      model.name);
  }
  out.shards = shards_of(out.after);
  if (out.after.num_moe_layers() == out.after.num_layers) out.after.dense_hidden = 0;
  ModelConfig read = model_from_hf(to_hf(out.after), "sparse " + model.name);
  read.name = out.after.name;
  HM_CHECK(read == out.after, "sparse {}: config.json does not say this model", model.name);
  return out;
}

}  // namespace hetermoe
