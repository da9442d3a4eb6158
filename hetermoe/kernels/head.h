#pragma once
#include "hetermoe/kernels/language.h"

namespace hetermoe::kernels {

/// Cross entropy of rows of logits and its gradient in their place: d loss / d logits * scale, 0 where the
/// target does not count. Nothing but the logits themselves is as large as they are.
struct CrossEntropy {
  void* logits;        ///< [rows, width]; then their gradient if `scale` is not 0, else as they were
  const i64* targets;  ///< [rows]; `ignored` counts for nothing
  double* losses;      ///< [rows]
  i64 rows, width, ignored;
  double scale;
  i32 packed;
};

}  // namespace hetermoe::kernels
