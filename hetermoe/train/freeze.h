#pragma once
#include <string>
#include <vector>

#include "hetermoe/model/unit.h"

namespace hetermoe {

/// The units, ascending, all of whose parameters match one of the patterns: Hugging Face names in which *
/// stands for any text. Throws ConfigError naming train.freeze when a pattern matches nothing, when only some
/// tensors of a unit match, and when nothing would be left to train.
std::vector<Unit> frozen_units(const std::vector<std::string>& patterns, const ModelConfig& model);

}  // namespace hetermoe
