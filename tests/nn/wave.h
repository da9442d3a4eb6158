#pragma once
#include <ATen/ATen.h>

namespace hetermoe::testing {

/// Values of a sine, all different, so that no sum is zero by chance.
inline at::Tensor wave(at::IntArrayRef shape, double step, at::ScalarType dtype = at::kDouble) {
  return at::arange(c10::multiply_integers(shape), at::kDouble)
      .mul(step)
      .add(0.4)
      .sin()
      .view(shape)
      .to(dtype);
}

}  // namespace hetermoe::testing
