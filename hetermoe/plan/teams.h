#pragma once
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Faults that validate() finds in the teams of a row of shares: a team must divide all its tokens and heads
/// among its devices. where: place of the row.
std::vector<std::string> team_faults(const ShareRow& row, i64 seq_len, const ModelConfig& model,
                                     const std::string& where);
/// And in a layer: what is not built for teams.
std::vector<std::string> team_layer_faults(const LayerPlacement& layer, const std::string& where);

}  // namespace hetermoe
