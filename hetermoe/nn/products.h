#pragma once
#include <ATen/ATen.h>

// Matrix products of two-dimensional tensors. On a CPU those of bf16 are our own where it has fast
// instructions for them (cpu_bf16_product); other 16-bit ones go by way of fp32 on x86, where libtorch
// multiplies number by number or makes a kernel for every shape: many times as fast, and rounded once as
// well.
namespace hetermoe {

/// Whether products of such tensors are our own: bf16 on a CPU with fast instructions for
/// it.
bool has_own_products(const at::Tensor& x);

/// out = a b.
void multiply_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

/// sum += gradient. The sum may be wider than the gradient, which is then converted a part at a time.
void add_gradient_(at::Tensor sum, const at::Tensor& gradient);

/// sum += a b. The sum has the dtype of a and b, or is fp32 where they have 16 bits: then nothing is rounded
/// to 16 bits, and nothing of the sum's size is made.
void add_product_(at::Tensor sum, const at::Tensor& a, const at::Tensor& b);

/// sum += dout^T x: the gradient of a product's weight, from the product's input and the gradient of its
/// result. x may be narrower than dout, as in apply_wide_linear(). A sum that is narrower than dout gets the
/// gradient rounded to the dtype of x; any other sum gets it as add_product_() adds.
void add_weight_gradient_(at::Tensor sum, const at::Tensor& dout, const at::Tensor& x);

/// x weight^T: [T, in] by [out, in]. Differentiable.
at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight);

/// The same computed in `wide`, and the result in it; backward gives gradients in the dtypes of x and weight.
/// No wide copy of them is kept.
at::Tensor apply_wide_linear(const at::Tensor& x, const at::Tensor& weight, at::ScalarType wide);

}  // namespace hetermoe
