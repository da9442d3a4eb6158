#pragma once
#include <ATen/ATen.h>

#include <initializer_list>

#include "hetermoe/kernels/launch.h"
#include "hetermoe/nn/optimizer.h"
#include "hetermoe/nn/path.h"
#include "hetermoe/nn/rms_norm.h"
#include "hetermoe/nn/rope.h"
#include "hetermoe/nn/router_jitter.h"
#include "hetermoe/nn/rows.h"
#include "hetermoe/nn/swiglu.h"

// The ops by kernels of our own: on GPUs where they can be compiled, on CPUs while HostKernels is on. Only
// the files of the ops themselves call these; they have chosen them by runs_on_kernels().
namespace hetermoe {

/// Whether kernels of our own take tensors of this dtype on this device.
bool runs_on_kernels(const at::Tensor& x, Path path = Path::kAuto);
/// Whether x is on a GPU, so that operators serve which libtorch has for GPUs alone. On a CPU while
/// HostKernels is on: it brings the same operators for CPU tensors along.
inline bool takes_gpu_operators(const at::Tensor& x) {
  return !x.device().is_cpu() || kernels::HostKernels::on();
}

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

at::Tensor gpu_gather_rows(const at::Tensor& source_TD, const at::Tensor& index_R);
/// target[index[r]] += rows[r] in order of r, added wide and rounded once.
void gpu_add_rows_(at::Tensor& target_TD, const at::Tensor& index_R, const at::Tensor& rows_RD);
/// from_zero: zeros in the place of `base`, which only gives sizes and dtype.
at::Tensor gpu_merge_rows(const at::Tensor& base_TD, const std::vector<MergePart>& parts, bool from_zero);

/// The items of each of `num_keys` keys, in ascending order.
struct KeyOrder {
  at::Tensor item_C;    ///< of key 0, then those of key 1, ...
  at::Tensor begin_K1;  ///< int32: items of key k are item[begin[k], begin[k + 1])
};
/// key_C: int64 or int32 in [0, num_keys), on the device that is to use the order.
KeyOrder order_by_key(const at::Tensor& key_C, i64 num_keys);
/// out[k] = sum of rows[c] over the items c of key k, added wide and rounded once. [K, D].
at::Tensor gpu_sum_rows(const at::Tensor& rows_CD, const KeyOrder& order);

/// Whether the kernels take these: x contiguous, the weight of its dtype.
bool norm_runs_on_kernels(const at::Tensor& x, const at::Tensor& weight_D, Path path);
NormForward gpu_rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps);
/// The same of residual + x, which goes into `sum`.
NormForward gpu_residual_norm_forward(const at::Tensor& sum, const at::Tensor& residual, const at::Tensor& x,
                                      const at::Tensor& weight_D, double eps);
/// dresidual: added to dx, or undefined.
NormGradient gpu_rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                                   const at::Tensor& dout, const at::Tensor& dresidual = {});

/// out = x turned; out may be x. Both [B, S, heads, dim] of any strides but 1 in the last dimension.
void gpu_rotate(const at::Tensor& out, const at::Tensor& x, const RopeTable& table, RopeLayout layout,
                RopeDirection direction);

/// False where the kernel does not take this mix of dtypes or strides; then nothing has happened.
bool gpu_adamw_update(std::vector<at::Tensor>& values, const std::vector<at::Tensor>& grads,
                      AdamwState& state, const AdamwOptions& options, double learning_rate,
                      double grad_factor);
/// Contiguous, all on one device.
void gpu_clear(const std::vector<at::Tensor>& tensors);
/// All of one dtype.
at::Tensor gpu_squared_norm(const std::vector<at::Tensor>& grads);

/// jittered() of router_jitter.h; x or dtype is fp32, or both are fp64.
at::Tensor gpu_jittered(const at::Tensor& x_TD, const RouterJitter& jitter, at::ScalarType dtype);

/// Cross entropy [T], fp64, of logits_TV; these become its gradient times `scale`, unless that is 0.
at::Tensor gpu_cross_entropy(const at::Tensor& logits_TV, const at::Tensor& targets_T, double scale);

}  // namespace hetermoe
