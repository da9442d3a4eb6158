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

/// out[r] = base[r] + sum of source[item[i]] for i in [begin[r], begin[r + 1]), in this order, each addition wide.
struct SumRows {
  const void* source;
  const void* base;   ///< or null for zero
  const void* item;   ///< or null: item[i] = i
  const void* begin;  ///< [rows + 1]
  void* out;
  i64 rows, width;
  i32 packed;
};

/// out[t] = base[t] + sum over p of source_p[row_p[t]] for those parts that have a row for t (not -1), in order of
/// the parts: what a layer's experts return joins the residual stream.
struct MergeRows {
  struct Part {
    const void* source;
    const i32* row;  ///< [rows]
  };
  const void* base;
  void* out;
  i64 rows, width;
  i32 num_parts, packed;
  Part parts[32];
};

/// row[token[r]] = r for r in [0, rows); the others keep what they have.
struct InvertRows {
  const void* token;
  i32* row;
  i64 rows;
};

}  // namespace hetermoe::kernels
