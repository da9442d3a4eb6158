#pragma once
#include "hetermoe/base/types.h"

// Products of bf16 matrices by a CPU's matrix registers (AMX), without a kernel made at run time for every
// shape: the number of copies of an expert is another one in each step.
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

/// Whether this processor and its operating system let a program use the matrix registers.
bool has_bf16_matrix_registers();

/// c (+)= a b, c of rows a.rows and columns b.cols at a distance of c_row elements. Sums are fp32; numbers
/// below fp32's normal range count as zero. Shared out over the threads of libtorch unless called in one of
/// its parallel regions. Each element's sum has one order, so neither the number of threads nor the other
/// rows change a bit. Only where has_bf16_matrix_registers().
void bf16_product(const Bf16Matrix& a, const Bf16Matrix& b, void* c, i64 c_row, ProductOutput output);

}  // namespace hetermoe
