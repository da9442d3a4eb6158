#pragma once
#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// A model with so many positions has them. Throws ConfigError.
void check_positions(const ModelConfig& model, i64 seq_len);
/// The request with `sequences` settled. Throws ConfigError when it makes no sense.
PlanRequest checked(PlanRequest request);

}  // namespace hetermoe
