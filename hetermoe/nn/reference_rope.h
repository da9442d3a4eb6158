#pragma once
#include <ATen/ATen.h>

#include "hetermoe/model/model_config.h"

namespace hetermoe {

/// Rotary embedding of [B, h, S, d] for reference.h, element by element as in the papers: for each pair (a,
/// b) and angle position * frequency, a' = a cos - b sin and b' = b cos + a sin.
at::Tensor reference_turn(const ModelConfig& model, const at::Tensor& x);

}  // namespace hetermoe
