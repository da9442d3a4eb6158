#include "hetermoe/nn/swiglu.h"

#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {
namespace {

/// Calls f(first, count) for blocks of rows whose intermediate results, in the accumulate type, stay below a
/// bound. Rows depend on nothing but themselves. On a CPU several threads may be
/// here at once, and small blocks stay in its cache.
template <class F>
void for_each_swiglu_block(const at::Tensor& gate_up_C2F, F f) {
  const i64 copies = gate_up_C2F.size(0), width = std::max<i64>(1, gate_up_C2F.size(1) / 2);
  // libtorch's fp64 exponentials differ in their last bit at the end of a tensor: blocks would show.
  if (gate_up_C2F.scalar_type() == at::kDouble) return f(0, copies);
  const auto element = static_cast<i64>(at::elementSize(accumulate_type(gate_up_C2F.scalar_type())));
  const i64 room = gate_up_C2F.device().is_cpu() ? kActivationBlockBytes / 16 : kActivationBlockBytes;
  const i64 most = std::max<i64>(1, room / (kActivationTemporaries * element * width));
  for (i64 first = 0; first < copies; first += most) f(first, std::min(most, copies - first));
}

/// What the activation with a limit is made of.
struct Limited {
  at::Tensor gate, up, sigmoid, glu;

  Limited(const at::Tensor& gate_up_C2F, const GatedActivation& how) {
    const i64 width = gate_up_C2F.size(1) / 2;
    const at::Tensor wide = gate_up_C2F.to(accumulate_type(gate_up_C2F.scalar_type()));
    gate = wide.narrow(1, 0, width).clamp_max(how.limit);
    up = wide.narrow(1, width, width).clamp(-how.limit, how.limit).add_(1);
    sigmoid = (gate * how.alpha).sigmoid_();
    glu = gate * sigmoid;
  }
};

at::Tensor weighted(const at::Tensor& act, const at::Tensor& weights_C) {
  return weights_C.defined() ? act * weights_C.unsqueeze(1) : act;
}

at::Tensor limited_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                           const GatedActivation& how) {
  const at::Tensor act = at::empty({gate_up_C2F.size(0), gate_up_C2F.size(1) / 2}, gate_up_C2F.options());
  for_each_swiglu_block(gate_up_C2F, [&](i64 first, i64 count) {
    const Limited x(gate_up_C2F.narrow(0, first, count), how);
    const at::Tensor weights = weights_C.defined() ? weights_C.narrow(0, first, count) : weights_C;
    act.narrow(0, first, count).copy_(weighted(x.glu * x.up, weights));
  });
  return act;
}

/// All is computed before anything is written: the outputs may be the inputs.
void limited_backward(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                      const at::Tensor& dact_CF, const GatedActivation& how) {
  const i64 width = gate_up_C2F.size(1) / 2;
  const Limited x(gate_up_C2F, how);
  const at::Tensor dact = dact_CF.to(x.glu.scalar_type()), plain = x.glu * x.up;
  const at::Tensor d = weighted(dact, weights_C);
  const at::Tensor slope = (1 - x.sigmoid).mul_(x.glu).mul_(how.alpha).add_(x.sigmoid);
  // Where a limit holds nothing changes. torch's clamp passes gradients on at the limit itself.
  const at::Tensor gate = gate_up_C2F.narrow(1, 0, width), up = gate_up_C2F.narrow(1, width, width);
  const at::Tensor dgate = (d * x.up).mul_(slope).masked_fill_(gate.gt(how.limit), 0);
  const at::Tensor dup = (d * x.glu).masked_fill_(up.abs().gt(how.limit), 0);
  if (weights_C.defined()) out.dweights_C.copy_((dact * plain).sum(1));
  if (out.act_CF.defined()) out.act_CF.copy_(weighted(plain, weights_C));
  out.dgate_up_C2F.narrow(1, 0, width).copy_(dgate);
  out.dgate_up_C2F.narrow(1, width, width).copy_(dup);
}

at::Tensor generic_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C) {
  const i64 width = gate_up_C2F.size(1) / 2;
  const at::Tensor gate = gate_up_C2F.narrow(1, 0, width), up = gate_up_C2F.narrow(1, width, width);
  const at::Tensor act = at::silu(gate).mul_(up);
  if (!weights_C.defined()) return act;
  for_each_swiglu_block(gate_up_C2F, [&](i64 first, i64 count) {
    at::Tensor part = act.narrow(0, first, count);
    part.copy_(part * weights_C.narrow(0, first, count).unsqueeze(1));
  });
  return act;
}

/// All is computed before anything is written: the outputs may be the inputs.
void generic_backward(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                      const at::Tensor& dact_CF) {
  const i64 width = gate_up_C2F.size(1) / 2;
  const at::ScalarType wide = accumulate_type(gate_up_C2F.scalar_type());
  const at::Tensor gate = gate_up_C2F.narrow(1, 0, width).to(wide),
                   up = gate_up_C2F.narrow(1, width, width).to(wide), dact = dact_CF.to(wide);
  const at::Tensor sigmoid = gate.sigmoid(), silu = gate * sigmoid, plain = silu * up;
  const at::Tensor d = weighted(dact, weights_C);
  const at::Tensor dgate = (d * up).mul_((1 - sigmoid).mul_(silu).add_(sigmoid)), dup = d * silu;
  if (weights_C.defined()) out.dweights_C.copy_((dact * plain).sum(1));
  if (out.act_CF.defined()) out.act_CF.copy_(weighted(plain, weights_C));
  out.dgate_up_C2F.narrow(1, 0, width).copy_(dgate);
  out.dgate_up_C2F.narrow(1, width, width).copy_(dup);
}

}  // namespace

at::Tensor swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C, Path path,
                          const GatedActivation& activation) {
  if (activation.limit > 0) return limited_forward(gate_up_C2F, weights_C, activation);
  if (runs_on_kernels(gate_up_C2F, path)) return gpu_swiglu_forward(gate_up_C2F, weights_C);
  return runs_on_cpu(gate_up_C2F, path) ? cpu_swiglu_forward(gate_up_C2F, weights_C)
                                        : generic_forward(gate_up_C2F, weights_C);
}

SwigluGradient swiglu_backward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                               const at::Tensor& dact_CF, RecomputeAct recompute_act, Path path,
                               const GatedActivation& activation) {
  SwigluGradient out{at::empty_like(gate_up_C2F), {}, {}};
  if (recompute_act == RecomputeAct::kYes) out.act_CF = at::empty_like(dact_CF);
  if (weights_C.defined()) out.dweights_C = at::empty_like(weights_C);
  swiglu_backward_out(out, gate_up_C2F, weights_C, dact_CF, path, activation);
  return out;
}

void swiglu_backward_out(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF, Path path, const GatedActivation& activation) {
  const bool limited = activation.limit > 0;
  if (!limited && runs_on_kernels(gate_up_C2F, path) && gate_up_C2F.is_contiguous() &&
      out.dgate_up_C2F.is_contiguous()) {
    gpu_swiglu_backward(out, gate_up_C2F, weights_C, dact_CF.contiguous());
    return;
  }
  if (!limited && runs_on_cpu(gate_up_C2F, path)) {
    cpu_swiglu_backward(out, gate_up_C2F, weights_C, dact_CF.contiguous());
    return;
  }
  for_each_swiglu_block(gate_up_C2F, [&](i64 first, i64 count) {
    const auto part = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, first, count) : at::Tensor();
    };
    SwigluGradient block{part(out.dgate_up_C2F), part(out.act_CF), part(out.dweights_C)};
    limited ? limited_backward(block, part(gate_up_C2F), part(weights_C), part(dact_CF), activation)
            : generic_backward(block, part(gate_up_C2F), part(weights_C), part(dact_CF));
  });
}

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SwigluFunction : torch::autograd::Function<SwigluFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& gate_up) {
    context->save_for_backward({gate_up});
    return swiglu_forward(gate_up, at::Tensor());
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    return {swiglu_backward(saved[0], at::Tensor(), grads[0], RecomputeAct::kNo).dgate_up_C2F};
  }
};

}  // namespace

at::Tensor swiglu(const at::Tensor& gate_up_C2F) { return SwigluFunction::apply(gate_up_C2F); }

}  // namespace hetermoe
