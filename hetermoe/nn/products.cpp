#include "hetermoe/nn/products.h"

#include <ATen/record_function.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "hetermoe/base/types.h"
#include "hetermoe/nn/cpu_bf16_product.h"
#include "hetermoe/nn/gpu_kernels.h"

namespace hetermoe {
namespace {

/// Whether libtorch multiplies such matrices better than by way of fp32.
bool multiplies([[maybe_unused]] at::ScalarType dtype) {
#if defined(__x86_64__)
  // Its bf16 kernels, where a processor has instructions for them, are made anew for every shape; for fp16 it
  // has none for most processors.
  return at::elementSize(dtype) > 2;
#else
  return true;
#endif
}

bool goes_by_fp32(const at::Tensor& x) { return x.device().is_cpu() && !multiplies(x.scalar_type()); }

/// One stride 1, else a copy that has one.
at::Tensor dense(const at::Tensor& x) { return x.stride(0) == 1 || x.stride(1) == 1 ? x : x.contiguous(); }

Bf16Matrix matrix_of(const at::Tensor& x) {
  return {x.const_data_ptr(), x.size(0), x.size(1), x.stride(0), x.stride(1)};
}

bool fits_own_product(const at::Tensor& out, const at::Tensor& a) {
  return has_own_products(a) && out.stride(1) == 1;
}

void own_product(at::Tensor& out, const at::Tensor& a, const at::Tensor& b, ProductOutput output) {
  RECORD_FUNCTION("hetermoe::product", std::vector<c10::IValue>());
  const at::Tensor left = dense(a), right = dense(b);
  bf16_product(matrix_of(left), matrix_of(right), out.mutable_data_ptr(), out.stride(0), output);
}

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (a.device().is_cpu() && a.scalar_type() == at::kBFloat16) {
    at::Tensor out = at::empty({a.size(0), b.size(1)}, a.options());
    multiply_into(out, a, b);
    return out;
  }
  return goes_by_fp32(a) ? at::mm(a.to(at::kFloat), b.to(at::kFloat)).to(a.scalar_type()) : at::mm(a, b);
}

/// Calls f(first, count) for parts of the rows of x with at most kBlock elements (or one row).
template <class F>
void for_each_block(const at::Tensor& x, F f) {
  constexpr i64 kBlock = 4 << 20;
  const i64 num_rows = x.size(0), width = num_rows == 0 ? 0 : x.numel() / num_rows;
  const i64 most = std::max<i64>(1, kBlock / std::max<i64>(1, width));
  for (i64 first = 0; first < num_rows; first += most) f(first, std::min(most, num_rows - first));
}

/// Its gradients are those of LinearFunction.
bool is_own_linear(const at::Tensor& x) {
  return x.device().is_cpu() && at::elementSize(x.scalar_type()) < 4;
}

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// Keeps its operands as they are, where at::linear of converted ones would keep them in fp32.
struct LinearFunction : torch::autograd::Function<LinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight) {
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    return product(x, weight.t());
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const bool trains = context->needs_input_grad(1);
    return {product(grads[0], saved[1]), trains ? product(grads[0].t(), saved[0]) : at::Tensor()};
  }
};

/// The same for operands that are converted; their gradients come in their own dtypes.
struct WideLinearFunction : torch::autograd::Function<WideLinearFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            at::ScalarType wide) {
    context->save_for_backward({weight.requires_grad() ? x : at::Tensor(), weight});
    context->saved_data["dtype"] = x.scalar_type();
    const bool narrow = x.scalar_type() == weight.scalar_type() && at::elementSize(x.scalar_type()) == 2;
    if (narrow && wide == at::kFloat && takes_gpu_operators(x)) return at::mm(x, weight.t(), wide);
    return at::linear(x.to(wide), weight.to(wide));
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &grad = grads[0], &x = saved[0], &weight = saved[1];
    const auto wide = [&](const at::Tensor& t) { return t.to(grad.scalar_type()); };
    const bool trains = context->needs_input_grad(1);
    const at::ScalarType dtype = context->saved_data["dtype"].toScalarType();
    return {at::mm(grad, wide(weight)).to(dtype),
            trains ? at::mm(grad.t(), wide(x)).to(weight.scalar_type()) : at::Tensor(), at::Tensor()};
  }
};

}  // namespace

bool has_own_products(const at::Tensor& x) {
  return x.device().is_cpu() && x.scalar_type() == at::kBFloat16 && has_fast_bf16_unit();
}

void multiply_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (fits_own_product(out, a)) {
    own_product(out, a, b, ProductOutput::kBf16);
  } else if (goes_by_fp32(a)) {
    out.copy_(at::mm(a.to(at::kFloat), b.to(at::kFloat)));
  } else {
    at::mm_out(out, a, b);
  }
}

void add_gradient_(at::Tensor sum, const at::Tensor& gradient) {
  const bool converts_whole = sum.device().is_cpu() && sum.scalar_type() != gradient.scalar_type();
  if (!converts_whole || gradient.dim() < 2) {
    sum.add_(gradient);
    return;
  }
  for_each_block(gradient, [&](i64 first, i64 rows) {
    sum.narrow(0, first, rows).add_(gradient.narrow(0, first, rows));
  });
}

namespace {

void add_equal_product_(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (fits_own_product(sum, a)) {
    at::Tensor wide = sum.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true, at::MemoryFormat::Contiguous);
    own_product(wide, a, b, ProductOutput::kAddFloat);
    sum.copy_(wide);
  } else if (goes_by_fp32(a)) {
    sum.copy_(at::addmm(sum.to(at::kFloat), a.to(at::kFloat), b.to(at::kFloat)));
  } else {
    sum.addmm_(a, b);
  }
}

/// The sum is fp32, the factors have 16 bits. Only libtorch's library for GPUs has one product for that. It
/// takes the sum for input and output alike.
void add_wide_product_(at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  if (takes_gpu_operators(a))
    at::addmm_out(sum, sum, a, b, at::kFloat);
  else if (fits_own_product(sum, a))
    own_product(sum, a, b, ProductOutput::kAddFloat);
  else
    sum.addmm_(a.to(at::kFloat), b.to(at::kFloat));
}

}  // namespace

void add_product_(at::Tensor sum, const at::Tensor& a, const at::Tensor& b) {
  if (sum.scalar_type() == a.scalar_type())
    add_equal_product_(sum, a, b);
  else
    add_wide_product_(sum, a, b);
}

void add_weight_gradient_(at::Tensor sum, const at::Tensor& dout, const at::Tensor& x) {
  const at::ScalarType of_sum = sum.scalar_type(), of_product = dout.scalar_type();
  const at::Tensor input = x.to(of_product);
  if (of_sum == of_product || (of_sum == at::kFloat && at::elementSize(of_product) < 4))
    add_product_(sum, dout.t(), input);
  else
    add_gradient_(sum, at::mm(dout.t(), input).to(x.scalar_type()));
}

at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight) {
  return is_own_linear(x) ? LinearFunction::apply(x, weight) : at::linear(x, weight);
}

at::Tensor apply_wide_linear(const at::Tensor& x, const at::Tensor& weight, at::ScalarType wide) {
  const bool is_wide = x.scalar_type() == wide && weight.scalar_type() == wide;
  return is_wide ? apply_linear(x, weight) : WideLinearFunction::apply(x, weight, wide);
}

}  // namespace hetermoe
