#pragma once
#include <ATen/ATen.h>

#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/model/op_cost.h"
#include "hetermoe/nn/path.h"

namespace hetermoe {

struct AdamwOptions {
  double beta1 = 0.9, beta2 = 0.95, eps = 1e-8;
  double weight_decay = 0.1;  ///< decoupled; not on norms (1-D tensors)
};

/// Moments of a list of storages (StateGroup::values, or a slab's gate_up and down): same shapes, slots
/// alike.
struct AdamwState {
  std::vector<at::Tensor> exp_avg, exp_avg_sq;  ///< fp32 or bf16, or fp64 for fp64 values
  std::vector<at::Tensor> master;  ///< fp32 copies of bf16/fp16 values, where they are kept; else empty
  i64 step = 0;                    ///< updates done
  /// Values without a master, and moments in bf16, are rounded stochastically. The draws of an element follow
  /// from the key, the step, the storage and the element, counted from the storage's `first` (empty = 0).
  u64 rounding_key = 0;
  std::vector<i64> first = {};
};
/// What the stochastic rounding of a storage follows from: element j of the value is rounded by the draw of
/// `key` and first + j (round_stochastically), exp_avg by splitmix64(key + 1), exp_avg_sq by splitmix64(key +
/// 2).
struct Draws {
  u64 key = 0;
  i64 first = 0;
};
/// Those of storage i in update `state.step`.
Draws draws_of(const AdamwState& state, std::size_t i);

/// fp16 values need a master.
AdamwState make_adamw_state(const std::vector<at::Tensor>& values, const OptimizerWidths& kept = {});

/// One AdamW update of `values` in place. grad_factor multiplies every gradient first (the clip factor);
/// `grads` may be scaled in place by it.
void adamw_update(std::vector<at::Tensor>& values, const std::vector<at::Tensor>& grads, AdamwState& state,
                  const AdamwOptions& options, double learning_rate, double grad_factor,
                  Path path = Path::kAuto);

/// Zeros in all tensors, which are on one device.
void clear(const std::vector<at::Tensor>& tensors);

/// Sum of squares in fp64, tensor by tensor in the given order: 0-dim tensor on the tensors' device. Infinite
/// or NaN gradients make it infinite or NaN, which is the overflow flag.
at::Tensor squared_norm(const std::vector<at::Tensor>& grads, Path path = Path::kAuto);

/// min(1, max_norm / norm); 1 when max_norm is 0 (off).
double clip_factor(double squared_norm, double max_norm);

}  // namespace hetermoe
