#pragma once
#include <vector>

#include "hetermoe/base/types.h"

// How the copies of experts are divided over the devices that have them so that the slowest device ends as
// early as can be. Whole numbers throughout, so that processes on different machines decide alike.
namespace hetermoe {

using Hosts = std::vector<std::vector<i32>>;  ///< [experts] devices that have the expert, at least one

/// Any division, in fractions of copies.
struct ExactSplit {
  i64 num = 0, den = 1;  ///< the least time: num / den, in copies over speed
  /// [experts][hosts of the expert] copies, in parts of 1 / den; a row adds up to den times the expert's
  /// copies.
  std::vector<std::vector<i64>> copies;
};

/// copies: [experts] at least 0. speeds: [devices] at least 1. The sum of copies times the sum of speeds must
/// be below 2^62.
ExactSplit exact_split(const std::vector<i64>& copies, const Hosts& hosts, const std::vector<i64>& speeds);

/// Whole copies.
struct WholeSplit {
  i64 num = 0, den = 1;                  ///< the least time at which whole copies can end
  std::vector<std::vector<i64>> copies;  ///< [experts][hosts of the expert]; a row adds up to the expert's
};

/// As exact_split(), but no copy is cut. An expert's copies stay on its first host where there is room.
WholeSplit whole_split(const std::vector<i64>& copies, const Hosts& hosts, const std::vector<i64>& speeds);

}  // namespace hetermoe
