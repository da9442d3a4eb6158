#pragma once
#include <ATen/ATen.h>

#include "hetermoe/nn/params.h"
#include "hetermoe/nn/routing.h"

// The routed experts of one layer on one device, without autograd.
// Letters: R received rows, D hidden size, C copies in grouped order, F expert width.
namespace hetermoe {

/// How the matrix products of the experts are done; kAuto: see expert_products().
enum class ExpertProducts {
  kAuto,
  kEach,    ///< one expert after another; on a CPU the threads share them
  kGrouped  ///< those of all experts in one kernel (at::_grouped_mm)
};
/// kGrouped for bf16 on GPUs of compute capability 9.x, where libtorch has a kernel for it: elsewhere its
/// grouped product is a loop that makes the host wait. Hidden size and width must be multiples of 8 (its rows
/// begin at 16 bytes). Else kEach.
ExpertProducts expert_products(const ExpertSlab& slab);

/// What forward keeps when backward shall not recompute.
struct ExpertsSaved {
  at::Tensor gate_up_C2F;  ///< before the activation
};

/// out[r] = sum over the copies c of row r of weights[c] * down(silu(gate(x)) * up(x)). Rows without a copy
/// give zero. weights_C: grouped order, fp32 or fp64. saved: filled when not null. kGrouped holds the
/// intermediate results of all experts at once.
at::Tensor experts_forward(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                           const at::Tensor& weights_C, ExpertsSaved* saved = nullptr,
                           ExpertProducts products = ExpertProducts::kAuto);

struct ExpertsGradient {
  at::Tensor drows_RD;
  at::Tensor dweights_C;  ///< grouped order, dtype of the weights
};

/// dout_RD: gradient of forward's result. saved: of forward, used up (its memory is overwritten), or null to
/// recompute. Adds into the slab's gradients.
ExpertsGradient experts_backward(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                                 const at::Tensor& weights_C, ExpertsSaved* saved, const at::Tensor& dout_RD,
                                 ExpertProducts products = ExpertProducts::kAuto);

}  // namespace hetermoe
