#pragma once
#include <ATen/ATen.h>

// Matrix products of two-dimensional tensors. 16-bit ones go by way of fp32 on a processor without
// instructions for them, where libtorch multiplies number by number: more than ten times as fast, and rounded
// once as well.
namespace hetermoe {

/// out = a b.
void multiply_into(at::Tensor& out, const at::Tensor& a, const at::Tensor& b);

/// sum += a b.
void add_product_(at::Tensor sum, const at::Tensor& a, const at::Tensor& b);

/// x weight^T: [T, in] by [out, in]. Differentiable.
at::Tensor apply_linear(const at::Tensor& x, const at::Tensor& weight);

}  // namespace hetermoe
