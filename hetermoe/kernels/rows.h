#pragma once
#include "hetermoe/kernels/language.h"

namespace hetermoe::kernels {

/// out[r] = source[index[r]]; rows of `width` units of 16, 4 or 1 bytes, whatever the dtype.
struct GatherRows {
  const void* source;
  const void* index;  ///< [rows]
  void* out;
  i64 rows, width;
  i32 unit;
};

/// out[r] = base[r] + sum of source[item[i]] for i in [begin[r], begin[r + 1]), in this order, added wide and
/// rounded once. Rows that keep what they have (base = out and no item) are not touched.
struct SumRows {
  const void* source;
  const void* base;  ///< or null for zero
  const void* item;
  const i32* begin;  ///< [rows + 1]
  void* out;
  i64 rows, width;
  i32 packed;
};

/// out[t] = base[t] + the rows [begin_p[t], begin_p[t + 1]) of every part p, in order of the parts, added
/// wide and rounded once: what a layer's experts return joins the residual stream.
struct MergeRows {
  struct Part {
    const void* source;
    const i32* begin;  ///< [rows + 1]
  };
  static constexpr i32 kMostParts = 32;
  const void* base;  ///< null: zeros
  void* out;
  i64 rows, width;
  i32 num_parts, packed;
  Part parts[kMostParts];
};

/// begin[k] = how many of the ascending keys are less than k, for k in [0, num_keys].
struct SegmentBegins {
  const void* keys;  ///< [count]
  i32* begin;        ///< [num_keys + 1]
  i64 count, num_keys;
};

}  // namespace hetermoe::kernels
