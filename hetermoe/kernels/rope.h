#pragma once
#include "hetermoe/kernels/language.h"

namespace hetermoe::kernels {

/// Where the vectors of [sequences, length, heads, dim] lie, in elements; those of a vector are neighbours.
struct HeadStrides {
  i64 sequence, position, head;
};

/// out = x with element i turned with i + dim/2 (halves) or 2i with 2i + 1 (pairs), by +angle or -angle. out
/// may be x.
struct Rotate {
  const void* x;
  void* out;
  HeadStrides x_strides, out_strides;
  const void* cos;  ///< [length, dim / 2] wide
  const void* sin;
  i64 sequences, length, heads, dim;
  i32 pairs;     ///< layout
  i32 backward;  ///< -angle
};

}  // namespace hetermoe::kernels
