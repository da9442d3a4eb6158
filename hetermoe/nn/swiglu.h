#pragma once
#include <ATen/ATen.h>

#include "hetermoe/nn/path.h"

// The activation of gated MLPs, forward and backward.
namespace hetermoe {

/// Which one: ModelConfig::swiglu_limit and swiglu_alpha. That with a limit is made of libtorch's ops.
struct GatedActivation {
  double limit = 0, alpha = 0;
};

/// act = weight * silu(gate) * up for gate_up_C2F (gate columns first), or what the activation says;
/// weights_C undefined = 1. Result [C, F] in the dtype of gate_up.
at::Tensor swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C, Path path = Path::kAuto,
                          const GatedActivation& activation = {});

struct SwigluGradient {
  at::Tensor dgate_up_C2F;
  at::Tensor act_CF;      ///< forward's result, weights included; only if asked for
  at::Tensor dweights_C;  ///< if weights_C is defined
};
enum class RecomputeAct { kNo, kYes };
/// dact_CF: gradient of the result of forward.
SwigluGradient swiglu_backward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                               const at::Tensor& dact_CF, RecomputeAct recompute_act, Path path = Path::kAuto,
                               const GatedActivation& activation = {});
/// The same into given tensors; act_CF may be undefined. dgate_up_C2F may be gate_up_C2F itself, and act_CF
/// may be dact_CF.
void swiglu_backward_out(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF, Path path = Path::kAuto,
                         const GatedActivation& activation = {});

/// swiglu_forward without weights, inside autograd graphs.
at::Tensor swiglu(const at::Tensor& gate_up_C2F);

}  // namespace hetermoe
