#pragma once
#include <ATen/ATen.h>

#include "hetermoe/nn/params.h"
#include "hetermoe/nn/routing.h"

// The routed experts of one layer on one device, without autograd.
// Letters: R received rows, D hidden size, C copies in grouped order, F expert width.
namespace hetermoe {

/// What forward keeps when backward shall not recompute.
struct ExpertsSaved {
  at::Tensor gate_up_C2F;  ///< before the activation
};

/// out[r] = sum over the copies c of row r of weights[c] * down(silu(gate(x)) * up(x)). Rows without a copy
/// give zero. weights_C: grouped order, fp32 or fp64. saved: filled when not null.
at::Tensor experts_forward(const ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                           const at::Tensor& weights_C, ExpertsSaved* saved = nullptr);

struct ExpertsGradient {
  at::Tensor drows_RD;
  at::Tensor dweights_C;  ///< grouped order, dtype of the weights
};

/// dout_RD: gradient of forward's result. saved: of forward, used up (its memory is overwritten), or null to
/// recompute. Adds into the slab's gradients.
ExpertsGradient experts_backward(ExpertSlab& slab, const at::Tensor& rows_RD, const CopyGroups& groups,
                                 const at::Tensor& weights_C, ExpertsSaved* saved, const at::Tensor& dout_RD);

}  // namespace hetermoe
