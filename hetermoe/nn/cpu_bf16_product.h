#pragma once
#include "hetermoe/base/types.h"

// Products of bf16 matrices by a CPU's matrix or vector instructions for them, without a kernel made at run
// time for every shape: the number of copies of an expert is another one in each step.
namespace hetermoe {

/// A matrix of bf16 numbers; strides in elements, one of them 1.
struct Bf16Matrix {
  const void* data = nullptr;
  i64 rows = 0, cols = 0;
  i64 row_stride = 0, col_stride = 0;
};

enum class ProductOutput {
  kBf16,     ///< c = a b, rounded once
  kFloat,    ///< c = a b
  kAddFloat  ///< c += a b in fp32
};

enum class Bf16Unit {
  kNone,
  kVectors,  ///< AVX-512 bf16
  kTiles     ///< AMX
};
/// The best that this processor has and its operating system lets a program use.
Bf16Unit bf16_unit();
/// Whether it multiplies faster than fp32's instructions: tiles always; of vectors AMD's, while Intel's take
/// twice as long (docs/results/cpu16_2026-11-23.md).
bool has_fast_bf16_unit();

/// c (+)= a b, c of rows a.rows and columns b.cols at a distance of c_row elements. Sums are fp32; numbers
/// below fp32's normal range count as zero. Shared out over the threads of libtorch unless called in one of
/// its parallel regions. Each element's sum has one order, so neither the number of threads nor the other
/// rows change a bit. unit: not kNone, and none that is better than bf16_unit().
void bf16_product(const Bf16Matrix& a, const Bf16Matrix& b, void* c, i64 c_row, ProductOutput output,
                  Bf16Unit unit = bf16_unit());

}  // namespace hetermoe
