#pragma once
#include <ATen/ATen.h>

#include <initializer_list>

#include "hetermoe/kernels/launch.h"
#include "hetermoe/nn/path.h"
#include "hetermoe/nn/swiglu.h"

// The ops by kernels of our own: on GPUs where they can be compiled, on CPUs while HostKernels is on. Only
// the files of the ops themselves call these; they have chosen them by runs_on_kernels().
namespace hetermoe {

/// Whether kernels of our own take tensors of this dtype on this device.
bool runs_on_kernels(const at::Tensor& x, Path path = Path::kAuto);

/// Whether rows of `width` elements may be read 16 bytes at a time: all tensors begin at a multiple of 16
/// bytes, and rows are whole packs. Undefined tensors count for nothing.
bool is_packed(i64 width, std::initializer_list<at::Tensor> tensors);
/// Steps of work of one row, for kernels::threads_for().
i64 steps_of(i64 width, bool packed, const at::Tensor& like);

/// Null for an undefined tensor.
inline const void* data_or_null(const at::Tensor& x) { return x.defined() ? x.const_data_ptr() : nullptr; }
inline void* mutable_data_or_null(const at::Tensor& x) {
  return x.defined() ? x.mutable_data_ptr() : nullptr;
}

at::Tensor gpu_swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C);
void gpu_swiglu_backward(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF);

}  // namespace hetermoe
