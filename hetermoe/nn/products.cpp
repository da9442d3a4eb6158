#include "hetermoe/nn/products.h"

#include <torch/csrc/autograd/custom_function.h>

namespace hetermoe {
namespace {

bool multiplies(at::ScalarType dtype) {
#if defined(__x86_64__) && defined(__GNUC__)
  if (dtype == at::kBFloat16) return __builtin_cpu_supports("avx512bf16") != 0;
  if (dtype == at::kHalf) return false;  // libtorch has no kernels for the processors that could
#endif
  return true;
}

bool goes_by_fp32(const at::Tensor& x) { return x.device().is_cpu() && !multiplies(x.scalar_type()); }

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  return goes_by_fp32(a) ? at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type()) : at::mm(a, b);
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Keeps its operands as they are, where at::linear of converted ones would keep them in fp32.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return product(x, weight.t());
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    return {product(grads[0], saved[1]), product(grads[0].t(), saved[0])};
  }
};

}  // namespace

void multiply_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (goes_by_fp32(a)) {
    out.copy_(at::mm(a.to(at::kFloat), b.to(at::kFloat)));
  } else {
    at::mm_out(out, a, b);
  }
}

void add_product_(at::Tensor sum, const at::Tensor& a, const at::Tensor& b) {
  if (goes_by_fp32(a)) {
    sum.copy_(at::addmm(sum.to(at::kFloat), a.to(at::kFloat), b.to(at::kFloat)));
  } else {
    sum.addmm_(a, b);
  }
}

at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight) {
  return goes_by_fp32(x) ? LinearFunction::apply(x, weight) : at::linear(x, weight);
}

}  // namespace hetermoe
