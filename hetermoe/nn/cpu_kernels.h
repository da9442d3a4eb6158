#pragma once
#include <ATen/ATen.h>

#include <algorithm>

#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/rms_norm.h"
#include "hetermoe/nn/rope.h"
#include "hetermoe/nn/swiglu.h"

// The element-wise ops on a CPU, each in one pass over memory, in fp32 inside whatever the rows are: fp32,
// bf16 or fp16. Only the files of the ops themselves call these; they have chosen them by runs_on_cpu().
namespace hetermoe {

/// On a CPU in fp32, bf16 or fp16.
inline bool is_cpu_float(const at::Tensor& x) {
  const at::ScalarType dtype = x.scalar_type();
  return x.device().is_cpu() && (dtype == at::kFloat || dtype == at::kBFloat16 || dtype == at::kHalf);
}

inline bool runs_on_cpu(const at::Tensor& x, Path path) {
  return path == Path::kAuto && is_cpu_float(x) && x.is_contiguous();
}

/// Rows of so many elements that a second thread gives more than it costs.
inline i64 rows_per_task(i64 width) { return std::max<i64>(1, 16384 / std::max<i64>(1, width)); }

at::Tensor cpu_swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C);
void cpu_swiglu_backward(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF);

NormForward cpu_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps);
NormGradient cpu_rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                                   const at::Tensor& dout);

/// out = x turned; out may be x. Both [B, S, heads, dim] of any strides but 1 in the last dimension.
void cpu_rotate(const at::Tensor& out, const at::Tensor& x, const RopeTable& table, RopeLayout layout,
                RopeDirection direction);

/// A 16-bit storage with what its update needs: the gradient fp32 or 16-bit, the others fp32; all contiguous.
struct AdamwTensors {
  at::Tensor value, grad, master, exp_avg, exp_avg_sq;
};
/// One AdamW update, the step-th: gradient, master, moments and value in one pass. grad_factor multiplies the
/// gradient.
void cpu_adamw(const AdamwTensors& x, const AdamwOptions& options, i64 step, double learning_rate,
               double weight_decay, double grad_factor);

/// Sum of squares of floats in fp64, order of the additions fixed.
double sum_of_squares(const float* values, i64 count);

}  // namespace hetermoe
