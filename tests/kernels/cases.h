#pragma once
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "hetermoe/kernels/launch.h"
#include "hetermoe/nn/path.h"
#include "tests/nn/compare.h"

namespace hetermoe::testing {

using kernels::HostKernels;
using kernels::LaunchRecorder;

inline const std::vector<at::ScalarType> kAllDtypes = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf};

/// Between one and a few times the rounding of one element.
inline double one_rounding(at::ScalarType dtype) {
  switch (dtype) {
    case at::kDouble:
      return 1e-14;
    case at::kFloat:
      return 1e-6;
    case at::kHalf:
      return 1.2e-3;
    default:
      return 9e-3;
  }
}

/// Rows and width: none, one and many; primes, packs of 16 bytes, one more, one less, up to 8,192.
inline const std::vector<std::pair<i64, i64>> kRowsAndWidths = {
    {0, 16},  {1, 1},   {3, 2},    {2, 7},    {5, 8},    {3, 31},   {3, 33},  {4, 64},
    {2, 127}, {3, 257}, {2, 1000}, {2, 2048}, {3, 4099}, {2, 8191}, {2, 8192}};

/// Reproducible values around zero; the `seed` tells tensors of one test apart.
inline at::Tensor values(at::IntArrayRef shape, at::ScalarType dtype, u64 seed, double scale = 1) {
  const i64 count = c10::multiply_integers(shape);
  const at::Tensor step = at::arange(count, at::kDouble).mul(12.9898).add(static_cast<double>(seed) * 78.233);
  return step.sin().mul(43758.5453).remainder(1.0).sub(0.5).mul(4 * scale).view(shape).to(dtype);
}

inline at::ScalarType wide_of(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

/// Runs f on the host with blocks of so many threads.
template <class F>
void with_blocks_of(std::initializer_list<i32> threads, const F& f) {
  for (const i32 count : threads) {
    SCOPED_TRACE("threads per block: " + std::to_string(count));
    const HostKernels host(count);
    f();
  }
}

}  // namespace hetermoe::testing
