#pragma once
#include "hetermoe/kernels/language.h"

// The tensors of a list travel in the arguments of one launch (4 KB at most), so that no table must be copied
// to the device before. A block works on one chunk of one tensor.
namespace hetermoe::kernels {

inline constexpr i64 kUpdateChunk = 1 << 14;  ///< elements
inline constexpr i32 kUpdateTensors = 56;
inline constexpr i32 kNormTensors = 128;
inline constexpr i64 kNormChunk = 1 << 16;
inline constexpr i64 kClearChunk = 1 << 18;  ///< bytes

/// AdamW on masters, or on the values themselves. Where `copy` is there, it becomes the value rounded to 16
/// bits. Values and moments in bf16 are rounded stochastically, with the draws of nn/optimizer.h: those of
/// element i follow from `key` and first + i.
struct Adamw {
  struct Tensor {
    void* value;
    const void* grad;
    void* exp_avg;
    void* exp_avg_sq;
    void* copy;  ///< or null
    u64 key;
    i64 first, count;
    i32 first_block;  ///< blocks [first_block, that of the next tensor) work on it
    i32 decays;
  };
  i32 num_tensors, num_blocks;
  double beta1, beta2, eps;
  double decay;        ///< 1 - learning rate * weight decay
  double step_size;    ///< learning rate / (1 - beta1^step)
  double root_factor;  ///< 1 / sqrt(1 - beta2^step)
  double grad_factor;
  Tensor tensors[kUpdateTensors];
};

/// partial[b] = sum of squares of block b's chunk, in fp64.
struct SquareSum {
  struct Tensor {
    const void* values;
    i64 count;
    i32 first_block, packed;
  };
  i32 num_tensors;
  double* partial;
  Tensor tensors[kNormTensors];
};

/// All bytes become zero.
struct Clear {
  struct Tensor {
    void* data;
    i64 bytes;
    i32 first_block;
  };
  i32 num_tensors;
  Tensor tensors[kNormTensors];
};

/// *sum = the sum of the partial ones, by one block in a fixed order.
struct SumUp {
  const double* partial;
  double* sum;
  i64 count;
};

}  // namespace hetermoe::kernels
