#pragma once
#include <vector>

#include "hetermoe/base/types.h"

// Tables of numbers: rows of equal or different lengths.
namespace hetermoe {

using Rows = std::vector<std::vector<double>>;

/// Adds a table of the same shape; an empty sum becomes it.
inline void add_to(Rows& sum, const Rows& more) {
  if (sum.empty()) {
    sum = more;
    return;
  }
  for (std::size_t r = 0; r < sum.size(); ++r) {
    for (std::size_t i = 0; i < sum[r].size(); ++i) sum[r][i] += more[r][i];
  }
}

/// Moves a mean by `weight` (0 to 1) of the way to a newer table of the same shape; an empty one becomes it.
inline void move_mean(Rows& mean, const Rows& newest, double weight) {
  if (mean.empty()) {
    mean = newest;
    return;
  }
  for (std::size_t r = 0; r < mean.size(); ++r) {
    for (std::size_t i = 0; i < mean[r].size(); ++i) mean[r][i] += weight * (newest[r][i] - mean[r][i]);
  }
}

}  // namespace hetermoe
