#pragma once
#include <optional>

#include "hetermoe/model/model_config.h"

namespace hetermoe {

/// Layers l from first to last with (l + 1) % step == 0.
struct LayerInterval {
  i64 first = 0, last = 0, step = 1;
};
/// The layers with experts as an interval; none where there is no such one.
std::optional<LayerInterval> moe_interval(const ModelConfig& model);

}  // namespace hetermoe
