#include <ATen/Parallel.h>

#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/simd.h"

namespace hetermoe {
namespace {

/// sign = 1 turns forward, -1 back. out may be x: hence ivdep instead of __restrict.
HM_CLONES void turn_halves(const float* x, const float* cos, const float* sin, float sign, float* out,
                           i64 half) {
#pragma GCC ivdep
  for (i64 i = 0; i < half; ++i) {
    const float s = sign * sin[i], first = x[i], second = x[half + i];
    out[i] = first * cos[i] - second * s;
    out[half + i] = second * cos[i] + first * s;
  }
}

HM_CLONES void turn_pairs(const float* x, const float* cos, const float* sin, float sign, float* out,
                          i64 half) {
#pragma GCC ivdep
  for (i64 i = 0; i < half; ++i) {
    const float s = sign * sin[i], first = x[2 * i], second = x[2 * i + 1];
    out[2 * i] = first * cos[i] - second * s;
    out[2 * i + 1] = second * cos[i] + first * s;
  }
}

}  // namespace

void cpu_rotate(const at::Tensor& out, const at::Tensor& x, const RopeTable& table, RopeLayout layout,
                RopeDirection direction) {
  const i64 seq_len = x.size(1), num_heads = x.size(2), dim = x.size(3);
  const float* from = x.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const float* cos = table.cos.const_data_ptr<float>();
  const float* sin = table.sin.const_data_ptr<float>();
  const float sign = direction == RopeDirection::kForward ? 1.0f : -1.0f;
  at::parallel_for(0, x.size(0) * seq_len, rows_per_task(num_heads * dim), [&](i64 begin, i64 end) {
    for (i64 token = begin; token < end; ++token) {
      const i64 b = token / seq_len, s = token % seq_len;
      for (i64 h = 0; h < num_heads; ++h) {
        const float* source = from + b * x.stride(0) + s * x.stride(1) + h * x.stride(2);
        float* target = to + b * out.stride(0) + s * out.stride(1) + h * out.stride(2);
        if (layout == RopeLayout::kHalves) {
          turn_halves(source, cos + s * dim / 2, sin + s * dim / 2, sign, target, dim / 2);
        } else {
          turn_pairs(source, cos + s * dim / 2, sin + s * dim / 2, sign, target, dim / 2);
        }
      }
    }
  });
}

}  // namespace hetermoe
