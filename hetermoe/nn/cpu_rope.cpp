#include <ATen/Parallel.h>

#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/cpu_rows.h"
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

/// The heads of one token that lie side by side, which are all or one.
template <class T>
void rotate_heads(const at::Tensor& out, const at::Tensor& x, const RopeTable& table, RopeLayout layout,
                  RopeDirection direction) {
  const i64 seq_len = x.size(1), num_heads = x.size(2), dim = x.size(3);
  const T* from = x.const_data_ptr<T>();
  T* to = out.mutable_data_ptr<T>();
  const float* cos = table.cos.const_data_ptr<float>();
  const float* sin = table.sin.const_data_ptr<float>();
  const float sign = direction == RopeDirection::kForward ? 1.0f : -1.0f;
  const bool together = x.stride(2) == dim && out.stride(2) == dim;
  const i64 heads = together ? num_heads : 1;
  const auto turn = layout == RopeLayout::kHalves ? turn_halves : turn_pairs;
  at::parallel_for(0, x.size(0) * seq_len, rows_per_task(num_heads * dim), [&](i64 begin, i64 end) {
    FloatRow<T> source_row(heads * dim), target_row(heads * dim);
    for (i64 token = begin; token < end; ++token) {
      const i64 b = token / seq_len, s = token % seq_len;
      for (i64 first = 0; first < num_heads; first += heads) {
        T* place = to + b * out.stride(0) + s * out.stride(1) + first * out.stride(2);
        const float* source = source_row.read(from + b * x.stride(0) + s * x.stride(1) + first * x.stride(2));
        float* target = target_row.place(place);
        for (i64 h = 0; h < heads * dim; h += dim)
          turn(source + h, cos + s * dim / 2, sin + s * dim / 2, sign, target + h, dim / 2);
        target_row.write(place);
      }
    }
  });
}

}  // namespace

void cpu_rotate(const at::Tensor& out, const at::Tensor& x, const RopeTable& table, RopeLayout layout,
                RopeDirection direction) {
  with_row_type(x, [&](auto of) { rotate_heads<decltype(of)>(out, x, table, layout, direction); });
}

}  // namespace hetermoe
