#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "hetermoe/model/unit.h"

namespace hetermoe {

/// * in a pattern stands for any text.
bool matches_pattern(std::string_view pattern, std::string_view text);

/// The units, ascending, all of whose parameters match one of the patterns: Hugging Face names in which *
/// stands for any text. Throws ConfigError naming train.freeze when a pattern matches nothing, when only some
/// tensors of a unit match, and when nothing would be left to train.
std::vector<Unit> frozen_units(const std::vector<std::string>& patterns, const ModelConfig& model);

}  // namespace hetermoe
