#include <ATen/Parallel.h>

#include <cmath>

#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/simd.h"

namespace hetermoe {
namespace {

HM_CLONES float square_sum(const float* x, i64 width) {
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

}  // namespace

NormForward cpu_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
  const i64 width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  NormForward out{at::empty_like(x), at::empty({rows}, x.options())};
  const float* xp = x.const_data_ptr<float>();
  const float* wp = weight_D.const_data_ptr<float>();
  float* op = out.out.mutable_data_ptr<float>();
  float* rp = out.rstd.mutable_data_ptr<float>();
  at::parallel_for(0, rows, rows_per_task(width), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const float mean = square_sum(xp + r * width, width) / static_cast<float>(width);
      rp[r] = 1.0f / std::sqrt(mean + static_cast<float>(eps));
      scale_row(xp + r * width, wp, rp[r], op + r * width, width);
    }
  });
  return out;
}

NormGradient cpu_rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                                   const at::Tensor& dout) {
  const i64 width = x.size(-1), rows = rstd.numel();
  NormGradient out{at::empty_like(x), at::Tensor()};
  const float* xp = x.const_data_ptr<float>();
  const float* wp = weight_D.const_data_ptr<float>();
  const float* rp = rstd.const_data_ptr<float>();
  const float* dp = dout.const_data_ptr<float>();
  float* dxp = out.dx.mutable_data_ptr<float>();
  // Partial sums over fixed blocks of rows, added in block order: the same result with any number of threads.
  constexpr i64 kBlocks = 16;
  at::Tensor partial = at::zeros({kBlocks, width}, x.options());
  float* pp = partial.mutable_data_ptr<float>();
  at::parallel_for(0, kBlocks, std::max<i64>(1, kBlocks * rows_per_task(width) / std::max<i64>(1, rows)),
                   [&](i64 begin, i64 end) {
                     for (i64 block = begin; block < end; ++block) {
                       for (i64 r = rows * block / kBlocks; r < rows * (block + 1) / kBlocks; ++r) {
                         norm_grad_row(xp + r * width, wp, rp[r], dp + r * width, dxp + r * width,
                                       pp + block * width, width);
                       }
                     }
                   });
  out.dweight_D = partial.sum(0);
  return out;
}

}  // namespace hetermoe
