#include <ATen/Parallel.h>

#include <cmath>

#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/cpu_rows.h"
#include "hetermoe/nn/simd.h"

namespace hetermoe {
namespace {

HM_CLONES float row_square_sum(const float* x, i64 width) {
  constexpr i64 kLanes = 16;
  float sums[kLanes] = {};
  i64 i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (i64 lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  for (; i < width; ++i) sums[0] += x[i] * x[i];
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

HM_CLONES void scale_row(const float* x, const float* weight, float factor, float* out, i64 width) {
  for (i64 i = 0; i < width; ++i) out[i] = weight[i] * (x[i] * factor);
}

/// dx of one row; adds the row's part of dweight.
HM_CLONES void norm_grad_row(const float* x, const float* weight, float rstd, const float* dout, float* dx,
                             float* dweight, i64 width) {
  constexpr i64 kLanes = 16;
  float sums[kLanes] = {};
  i64 i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (i64 lane = 0; lane < kLanes; ++lane) sums[lane] += dout[i + lane] * weight[i + lane] * x[i + lane];
  }
  for (; i < width; ++i) sums[0] += dout[i] * weight[i] * x[i];
  float dot = 0;
  for (const float sum : sums) dot += sum;
  const float mean = dot * rstd * rstd / static_cast<float>(width);
  for (i64 j = 0; j < width; ++j) {
    dx[j] = rstd * (dout[j] * weight[j] - x[j] * mean);
    dweight[j] += dout[j] * (x[j] * rstd);
  }
}

template <class T>
void norm_rows(const at::Tensor& x, const at::Tensor& weight_D, double eps, NormForward& out) {
  const i64 width = x.size(-1), rows = out.rstd.numel();
  const at::Tensor weight = weight_D.to(at::kFloat);
  const T* xp = x.const_data_ptr<T>();
  const float* wp = weight.const_data_ptr<float>();
  T* op = out.out.mutable_data_ptr<T>();
  float* rp = out.rstd.mutable_data_ptr<float>();
  at::parallel_for(0, rows, rows_per_task(width), [&](i64 begin, i64 end) {
    FloatRow<T> x_row(width), out_row(width);
    for (i64 r = begin; r < end; ++r) {
      const float* in = x_row.read(xp + r * width);
      const float mean = row_square_sum(in, width) / static_cast<float>(width);
      rp[r] = 1.0f / std::sqrt(mean + static_cast<float>(eps));
      scale_row(in, wp, rp[r], out_row.place(op + r * width), width);
      out_row.write(op + r * width);
    }
  });
}

/// Returns the gradient of the weight, fp32.
template <class T>
at::Tensor norm_rows_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                              const at::Tensor& dout, const at::Tensor& dx) {
  const i64 width = x.size(-1), rows = rstd.numel();
  const at::Tensor weight = weight_D.to(at::kFloat);
  const T* xp = x.const_data_ptr<T>();
  const float* wp = weight.const_data_ptr<float>();
  const float* rp = rstd.const_data_ptr<float>();
  const T* dp = dout.const_data_ptr<T>();
  T* dxp = dx.mutable_data_ptr<T>();
  // Partial sums over fixed blocks of rows, added in block order: the same result with any number of threads.
  constexpr i64 kBlocks = 16;
  at::Tensor partial = at::zeros({kBlocks, width}, rstd.options());
  float* pp = partial.mutable_data_ptr<float>();
  at::parallel_for(0, kBlocks, std::max<i64>(1, kBlocks * rows_per_task(width) / std::max<i64>(1, rows)),
                   [&](i64 begin, i64 end) {
                     FloatRow<T> x_row(width), dout_row(width), dx_row(width);
                     for (i64 block = begin; block < end; ++block) {
                       for (i64 r = rows * block / kBlocks; r < rows * (block + 1) / kBlocks; ++r) {
                         norm_grad_row(x_row.read(xp + r * width), wp, rp[r], dout_row.read(dp + r * width),
                                       dx_row.place(dxp + r * width), pp + block * width, width);
                         dx_row.write(dxp + r * width);
                       }
                     }
                   });
  return partial.sum(0);
}

}  // namespace

NormForward cpu_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
  const i64 width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  NormForward out{at::empty_like(x), at::empty({rows}, x.options().dtype(at::kFloat))};
  with_row_type(x, [&](auto of) { norm_rows<decltype(of)>(x, weight_D, eps, out); });
  return out;
}

NormGradient cpu_rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                                   const at::Tensor& dout) {
  NormGradient out{at::empty_like(x), at::Tensor()};
  with_row_type(x, [&](auto of) {
    out.dweight_D =
        norm_rows_backward<decltype(of)>(x, weight_D, rstd, dout, out.dx).to(weight_D.scalar_type());
  });
  return out;
}

}  // namespace hetermoe
