#pragma once
#include <torch/csrc/autograd/autograd.h>

#include "hetermoe/base/types.h"
#include "tests/nn/compare.h"

namespace hetermoe::testing {

inline at::Tensor wave(at::IntArrayRef shape, double scale, double step, at::ScalarType dtype = at::kFloat) {
  const i64 count = c10::multiply_integers(shape);
  return at::arange(count, at::kDouble).mul(step).add(0.2).sin().mul(scale).view(shape).to(dtype);
}

inline at::Tensor grad_of(const at::Tensor& output, const at::Tensor& input, const at::Tensor& seed) {
  return torch::autograd::grad({output}, {input}, {seed})[0];
}

// Widths that are and are not multiples of the lanes; none, one and many rows.
inline const std::vector<std::pair<i64, i64>> kShapes = {{0, 16}, {1, 1},   {3, 7},
                                                         {5, 16}, {70, 33}, {400, 896}};

}  // namespace hetermoe::testing
