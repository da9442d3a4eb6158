#include "hetermoe/nn/rms_norm.h"

#include <torch/csrc/autograd/custom_function.h>

#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {

NormForward rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps, Path path) {
  if (norm_runs_on_kernels(x, weight_D, path)) return gpu_rms_norm_forward(x, weight_D, eps);
  if (runs_on_cpu(x, path)) return cpu_rms_norm_forward(x, weight_D, eps);
  const i64 width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  const at::Tensor wide = x.to(accumulate_type(x.scalar_type()));
  const at::Tensor rstd = (wide.square().mean(-1, true) + eps).rsqrt();
  return {weight_D * (wide * rstd).to(x.scalar_type()), rstd.reshape({rows})};
}

NormGradient rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                               const at::Tensor& dout, Path path) {
  if (norm_runs_on_kernels(x, weight_D, path))
    return gpu_rms_norm_backward(x, weight_D, rstd, dout.contiguous());
  if (runs_on_cpu(x, path)) return cpu_rms_norm_backward(x, weight_D, rstd, dout.contiguous());
  const at::ScalarType wide = rstd.scalar_type();
  const i64 width = x.size(-1);
  const at::Tensor scale = rstd.unsqueeze(-1);
  const at::Tensor normed = x.reshape({-1, width}).to(wide) * scale, d = dout.reshape({-1, width}).to(wide);
  const at::Tensor weighted = d * weight_D.to(wide);
  const at::Tensor dx = scale * (weighted - normed * (weighted * normed).mean(-1, true));
  return {dx.to(x.scalar_type()).view_as(x), (d * normed).sum(0).to(weight_D.scalar_type())};
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const NormForward out = rms_norm_forward(x, weight, eps);
    context->save_for_backward({x, weight, out.rstd});
    return out.out;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    NormGradient out = rms_norm_backward(saved[0], saved[1], saved[2], grads[0]);
    return {out.dx, out.dweight_D, at::Tensor()};
  }
};

struct ResidualNormFunction : torch::autograd::Function<ResidualNormFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& residual, const at::Tensor& x,
                               const at::Tensor& weight, double eps) {
    const at::Tensor sum = at::empty_like(x);
    const NormForward out = gpu_residual_norm_forward(sum, residual, x, weight, eps);
    context->save_for_backward({sum, weight, out.rstd});
    return {sum, out.out};
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    NormGradient out =
        gpu_rms_norm_backward(saved[0], saved[1], saved[2], grads[1].contiguous(), grads[0].contiguous());
    return {out.dx, out.dx, out.dweight_D, at::Tensor()};
  }
};

}  // namespace

ResidualNorm residual_norm(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight_D,
                           double eps) {
  if (norm_runs_on_kernels(x, weight_D, Path::kAuto) && residual.is_contiguous() &&
      residual.scalar_type() == x.scalar_type()) {
    const variable_list out = ResidualNormFunction::apply(residual, x, weight_D, eps);
    return {out[0], out[1]};
  }
  const at::Tensor sum = residual + x;
  return {sum, rms_norm(sum, weight_D, eps)};
}

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
  return RmsNormFunction::apply(x, weight_D, eps);
}

}  // namespace hetermoe
