#pragma once
#include <algorithm>
#include <cstdint>

#include "hetermoe/base/types.h"

#define HM_INLINE [[gnu::always_inline]] inline

// Products of small blocks of floats for cpu_attention. Everything is inlined into a function that is
// compiled for several instruction sets, which chooses the vector type V.
namespace hetermoe {

using Vector8 = float __attribute__((vector_size(32), aligned(4), may_alias));
using Vector16 = float __attribute__((vector_size(64), aligned(4), may_alias));
using Int8 = std::int32_t __attribute__((vector_size(32)));
using Int16 = std::int32_t __attribute__((vector_size(64)));

inline constexpr i64 kRows = 6;  // of a tile: 12 accumulators, as many as AVX2 has room for

/// c (+)= a b for one block. Element (r, i) of a is a[r * a_row + i * a_step].
struct Product {
  i64 rows, cols, depth;
  const float* a;
  i64 a_row, a_step;
  const float* b;
  i64 b_row;
  float* c;
  i64 c_row;
  bool add;
};

template <class V, i64 R, i64 N>
HM_INLINE void product_tile(const Product& p, i64 row, i64 col, i64 first, i64 last) {
  constexpr i64 kWidth = static_cast<i64>(sizeof(V) / sizeof(float));
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + col;
  float* c = p.c + row * p.c_row + col;
  V sum[R][N];
#pragma GCC unroll 8
  for (i64 r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (i64 n = 0; n < N; ++n)
      sum[r][n] = p.add ? *reinterpret_cast<const V*>(c + r * p.c_row + n * kWidth) : V{};
  }
  for (i64 i = first; i < last; ++i) {
    V right[N];
#pragma GCC unroll 2
    for (i64 n = 0; n < N; ++n) right[n] = *reinterpret_cast<const V*>(b + i * p.b_row + n * kWidth);
#pragma GCC unroll 8
    for (i64 r = 0; r < R; ++r) {
      const float left = a[r * p.a_row + i * p.a_step];
#pragma GCC unroll 2
      for (i64 n = 0; n < N; ++n) sum[r][n] += left * right[n];
    }
  }
#pragma GCC unroll 8
  for (i64 r = 0; r < R; ++r) {
#pragma GCC unroll 2
    for (i64 n = 0; n < N; ++n) *reinterpret_cast<V*>(c + r * p.c_row + n * kWidth) = sum[r][n];
  }
}

/// R rows over columns [0, cols), cols a multiple of 8.
template <class V, i64 R>
HM_INLINE void product_rows(const Product& p, i64 row, i64 cols, i64 first, i64 last) {
  constexpr i64 kWidth = static_cast<i64>(sizeof(V) / sizeof(float));
  i64 col = 0;
  for (; col + 2 * kWidth <= cols; col += 2 * kWidth) product_tile<V, R, 2>(p, row, col, first, last);
  for (; col + kWidth <= cols; col += kWidth) product_tile<V, R, 1>(p, row, col, first, last);
  if constexpr (kWidth > 8) {
    for (; col < cols; col += 8) product_tile<Vector8, R, 1>(p, row, col, first, last);
  }
}

/// The part of a product that the mask leaves. Query r of a block sees its keys up to offset + r.
enum class Mask {
  kColumns,    ///< rows are queries, columns keys: others are not computed
  kDepth,      ///< rows are queries, depth keys
  kDepthFrom,  ///< rows are keys, depth queries
};

template <class V, i64 R>
HM_INLINE void product_masked(const Product& p, Mask mask, i64 offset, i64 row) {
  const i64 keys = std::min(mask == Mask::kColumns ? p.cols : p.depth, offset + row + R);
  if (mask == Mask::kColumns)
    product_rows<V, R>(p, row, (keys + 7) / 8 * 8, 0, p.depth);
  else if (mask == Mask::kDepth)
    product_rows<V, R>(p, row, p.cols, 0, keys);
  else
    product_rows<V, R>(p, row, p.cols, std::max<i64>(0, row - offset), p.depth);
}

template <class V>
HM_INLINE void product(const Product& p, Mask mask, i64 offset) {
  i64 row = 0;
  for (; row + kRows <= p.rows; row += kRows) product_masked<V, kRows>(p, mask, offset, row);
  for (; row + 2 <= p.rows; row += 2) product_masked<V, 2>(p, mask, offset, row);
  if (row < p.rows) product_masked<V, 1>(p, mask, offset, row);
}

}  // namespace hetermoe
