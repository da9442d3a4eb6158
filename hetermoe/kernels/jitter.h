#pragma once
#include "hetermoe/kernels/language.h"

namespace hetermoe::kernels {

/// out = x times factors between 1 - size and 1 + size, which are drawn in fp64 (nn/router_jitter.h). Row r
/// is token first_token + r, counted from the beginning of sequence `first_sequence`.
struct Jitter {
  const void* x;  ///< [rows, width]
  void* out;      ///< [rows, width]
  i64 rows, width;
  double size;
  u64 key;
  i64 first_sequence, first_token, seq_len;
};

}  // namespace hetermoe::kernels
