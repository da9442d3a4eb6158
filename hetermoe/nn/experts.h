#pragma once
#include <ATen/ATen.h>

#include "hetermoe/nn/params.h"
#include "hetermoe/nn/routing.h"

// The routed experts of one layer on one device, without autograd.
// Letters: R received rows, D hidden size, C copies in grouped order, F expert width.
namespace hetermoe {

/// Whether libtorch's grouped product takes such experts: bf16, widths that are multiples of 8 (its rows
/// begin at 16 bytes), not too many.
bool can_group_products(at::ScalarType dtype, i64 num_slots, i64 hidden, i64 width);
/// The choice of kAuto: that of the slab, if it has one that is possible. Else kGrouped on GPUs of compute
/// capability 9.x and 10.x, where libtorch has a kernel for it; elsewhere its grouped product is a loop that
/// makes the host wait.
ExpertProducts expert_products(const ExpertSlab& slab);

/// Weight gradients of small experts that lie there at once in 16 bits, before they are added to their sums:
/// where products are grouped.
inline constexpr i64 kMostProductBytes = 512 << 20;

/// Tensors that forward keeps when backward shall not recompute.
struct ExpertsSaved {
  at::Tensor gate_up_C2F;  ///< before the activation
};

/// out[r] = sum over the copies c of row r of weights[c] * down(silu(gate(x)) * up(x)), or with the slab's
/// activation. Rows without a copy
/// give zero. weights_C: grouped order, fp32 or fp64. saved: filled when not null. kGrouped holds the
/// intermediate results of all experts at once.
at::Tensor experts_forward(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                           const at::Tensor& weights_C, ExpertsSaved* saved = nullptr,
                           ExpertProducts products = ExpertProducts::kAuto);

/// Recomputes the tensors that forward would have saved.
ExpertsSaved experts_recompute(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                               ExpertProducts products = ExpertProducts::kAuto);

/// Tensors that backward leaves for experts_weight_gradients().
struct ExpertsLeft {
  at::Tensor dgate_up_C2F, act_CF;
  at::Tensor weights_C;  ///< where there are biases
};

struct ExpertsGradient {
  at::Tensor drows_RD;
  at::Tensor dweights_C;  ///< grouped order, dtype of the weights
};

/// dout_RD: gradient of forward's result. saved: of forward, used up (its memory is overwritten), or null to
/// recompute. Adds into the slab's gradients, or leaves them: left is filled when not null.
ExpertsGradient experts_backward(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                                 const at::Tensor& weights_C, ExpertsSaved* saved, const at::Tensor& dout_RD,
                                 ExpertProducts products = ExpertProducts::kAuto,
                                 ExpertsLeft* left = nullptr);
/// Adds the gradients that a backward with these rows and gradients left, with the bits that it would have
/// added.
void experts_weight_gradients(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                              const ExpertsLeft& left, const at::Tensor& dout_RD,
                              ExpertProducts products = ExpertProducts::kAuto);

}  // namespace hetermoe
