#pragma once
#include <string>
#include <vector>

#include "hetermoe/model/model_config.h"

namespace hetermoe {

/// Patterns of the matrices that have an adapter where the job names none: projections of attention and of
/// experts, as far as the model has them.
inline std::vector<std::string> usual_lora_targets(const ModelConfig& model) {
  std::vector<std::string> targets = {"*.self_attn.*_proj*"};
  if (model.num_moe_layers() > 0) targets.emplace_back("*.experts.*");
  return targets;
}

}  // namespace hetermoe
