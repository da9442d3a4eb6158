#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/simd.h"

namespace hetermoe {

HM_CLONES double sum_of_squares(const float* values, i64 count) {
  constexpr i64 kLanes = 16;
  double sums[kLanes] = {};
  i64 i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (i64 lane = 0; lane < kLanes; ++lane) {
      const double x = values[i + lane];
      sums[lane] += x * x;
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace hetermoe
