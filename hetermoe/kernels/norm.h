#pragma once
#include "hetermoe/kernels/language.h"

namespace hetermoe::kernels {

/// out = weight * x / rms(x) by rows; with a residual x is first replaced by residual + x, which is kept in
/// `sum`. A row belongs to a block, or to a warp where rows are short.
struct NormForward {
  const void* x;         ///< [rows, width]
  const void* residual;  ///< or null
  const void* weight;    ///< [width]
  void* sum;             ///< with a residual
  void* out;
  void* rstd;  ///< [rows] wide
  i64 rows, width;
  double eps;
  i32 packed, by_warp;
};

/// dx and, in `partial`, each team's part of the gradient of the weight: a team goes through rows of its own
/// in ascending order. Shared memory: width wide numbers for each team of the block, or none: then the parts
/// are added up where they lie.
struct NormBackward {
  const void* x;
  const void* weight;
  const void* rstd;
  const void* dout;
  const void* dresidual;  ///< added to dx, or null
  void* dx;
  void* partial;  ///< [teams, width] wide
  i64 rows, width, num_teams;
  i32 packed, by_warp, in_shared;
};

/// out[c] = sum of partial[r, c] over r in a fixed order, rounded once. A block has columns of its own.
struct SumColumns {
  const void* partial;  ///< [rows, width] wide
  void* out;            ///< [width]
  i64 rows, width;
};

}  // namespace hetermoe::kernels
