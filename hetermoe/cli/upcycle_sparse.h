#pragma once
#include <string>

#include "hetermoe/base/json.h"
#include "hetermoe/train/growth/growth_scores.h"

// The part of `hetermoe upcycle` that makes experts of dense MLPs.
namespace hetermoe {

struct SparseCommand {
  std::string from, to, layers;  ///< layers: as in "0-2,5", empty = all dense ones
  i64 experts = 0, top_k = 0;    ///< of a model without experts
  u64 seed = 1;
  i64 most_bytes = 0;
  bool verify = false, json = false;
};
/// Throws ConfigError and IoError as plan_sparse() and sparsify_folder().
int make_sparse(const SparseCommand& command, const GrowthSource& source);

/// Sizes of a model that upcycle prints, before and after.
Json sizes_json(const ModelConfig& model);
std::string sizes_text(const ModelConfig& before, const ModelConfig& after);

}  // namespace hetermoe
