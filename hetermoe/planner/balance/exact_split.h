#pragma once
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// How the copies of experts are divided over the devices that have them so that the slowest device ends as
/// early as can be. Exact: whole numbers throughout.
struct ExactSplit {
  i64 num = 0, den = 1;  ///< the least time: num / den, in copies over speed
  /// [experts][hosts of the expert] copies, in parts of 1 / den; a row adds up to den times the expert's
  /// copies.
  std::vector<std::vector<i64>> copies;
};

/// copies: [experts] at least 0. hosts: [experts] devices that have the expert, at least one. speeds:
/// [devices] at least 1. The sum of copies times the sum of speeds must be below 2^62.
ExactSplit exact_split(const std::vector<i64>& copies, const std::vector<std::vector<i32>>& hosts,
                       const std::vector<i64>& speeds);

}  // namespace hetermoe
