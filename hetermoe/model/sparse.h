#pragma once
#include <vector>

#include "hetermoe/model/model_config.h"

// Layers with a dense MLP get experts in its place, which together compute what it did.
namespace hetermoe {

struct SparseOptions {
  i64 experts = 0, top_k = 0;    ///< of a model without experts; others have theirs
  std::vector<i64> layers = {};  ///< whose MLP becomes experts; empty = all dense ones
};

/// A model of which some dense layers get experts. Every token chooses one or more whole copies of the MLP:
/// the shared expert has its first neurons, and the rest is cut into shards, an expert each.
struct Sparse {
  ModelConfig before, after;
  i64 shards = 1;
  bool is_made(i64 layer) const { return !before.is_moe(layer) && after.is_moe(layer); }
  /// The copy that an expert belongs to, by which its router row is drawn, and its shard of the MLP.
  i64 copy_of(ExpertId expert) const;
  i64 shard_of(ExpertId expert) const;
  /// By which the output of a shard is multiplied, so that routing weights make one MLP of all.
  double scale() const;
};

/// Llama and mistral become mixtral, qwen3 becomes qwen3_moe; dense layers of deepseek_v3 and qwen3_moe get
/// experts as the other layers have them. Throws ConfigError where the family's config.json cannot say it or
/// the function would be another one.
Sparse plan_sparse(const ModelConfig& model, const SparseOptions& options);

}  // namespace hetermoe
