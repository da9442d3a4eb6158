#pragma once
#include <vector>

#include "hetermoe/planner/estimate/sketch.h"

namespace hetermoe {

/// Sketches that differ from `sketch` in one figure: bias, rounding, microbatches, devices with attention of
/// a class.
std::vector<Sketch> neighbours(const Sketch& sketch, i64 max_microbatches);

/// Sketches whose groups of one kind have other devices of a class, roles as before: one fewer, whole nodes
/// alone, one more where one is free (a single group only).
std::vector<Sketch> other_devices(const Rates& rates, const Sketch& sketch);

/// Microbatch counts to try beside that of a group: the next divisors of its sequences and the next numbers,
/// 1 to `limit`.
std::vector<i64> neighbour_counts(const SketchGroup& group, i64 limit);

}  // namespace hetermoe
