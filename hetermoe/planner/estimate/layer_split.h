#pragma once
#include <functional>
#include <optional>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// Layers first .. first + count - 1 as stage number `stage`.
struct LayerRun {
  i64 stage = 0, first = 0, count = 0;
};

/// Cuts `layers` into `stages` runs of at least one layer so that the largest cost of a run is least. A run
/// without a cost is not allowed. Exact where neither cost nor what a run needs of anything else falls when
/// the run grows at either end: a run that is not allowed makes every longer one that begins with the same
/// layer not allowed. Returns [stage] layers; empty when no cut is allowed.
std::vector<i64> split_layers(i64 layers, i64 stages,
                              const std::function<std::optional<double>(const LayerRun&)>& cost);

}  // namespace hetermoe
