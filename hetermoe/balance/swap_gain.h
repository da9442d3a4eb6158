#pragma once
#include <cmath>

namespace hetermoe {

/// Whether the sum of values grows when `a` goes from x to y and `b` from y to x; a_at_y is what `a` is worth
/// at y. Equal rows give exactly nothing, and a gain within rounding of the values is none: a search that
/// swaps while there is a gain ends.
inline bool swap_gains(double a_at_x, double a_at_y, double b_at_x, double b_at_y) {
  const double gain = (a_at_y - b_at_y) - (a_at_x - b_at_x);
  const double size = std::abs(a_at_x) + std::abs(a_at_y) + std::abs(b_at_x) + std::abs(b_at_y);
  return gain > 1e-9 + 1e-12 * size;
}

}  // namespace hetermoe
