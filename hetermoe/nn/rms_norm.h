#pragma once
#include <ATen/ATen.h>

#include "hetermoe/nn/path.h"

// RMSNorm, forward and backward.
namespace hetermoe {

struct NormForward {
  at::Tensor out;   ///< dtype of x
  at::Tensor rstd;  ///< [rows], accumulate_type: 1 / root mean square of each row
};
/// out = weight * x / rms(x) over the last dimension, x_RD contiguous [..., D].
NormForward rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps,
                             Path path = Path::kAuto);

struct NormGradient {
  at::Tensor dx, dweight_D;
};
NormGradient rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                               const at::Tensor& dout, Path path = Path::kAuto);

/// The same inside autograd graphs.
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_D, double eps);

struct ResidualNorm {
  at::Tensor sum, out;
};
/// sum = residual + x, out = rms_norm(sum), inside autograd graphs. One pass where kernels of our own run.
ResidualNorm residual_norm(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight_D,
                           double eps);

}  // namespace hetermoe
