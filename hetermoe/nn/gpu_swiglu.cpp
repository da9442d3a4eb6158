#include <algorithm>

#include "hetermoe/kernels/swiglu.h"
#include "hetermoe/nn/gpu_kernels.h"
#include "hetermoe/nn/params.h"

namespace hetermoe {

bool runs_on_kernels(const at::Tensor& x, Path path) {
  const at::ScalarType dtype = x.scalar_type();
  const bool known =
      dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf;
  return path == Path::kAuto && known && kernels::has_kernels(x.device());
}

bool is_packed(i64 width, std::initializer_list<at::Tensor> tensors) {
  return std::all_of(tensors.begin(), tensors.end(), [&](const at::Tensor& x) {
    if (!x.defined()) return true;
    const auto address = reinterpret_cast<std::uintptr_t>(x.const_data_ptr());
    return address % 16 == 0 && width * static_cast<i64>(x.element_size()) % 16 == 0;
  });
}

i64 steps_of(i64 width, bool packed, const at::Tensor& like) {
  return packed ? width * static_cast<i64>(like.element_size()) / 16 : width;
}

namespace {

/// The weights as kernels read them.
at::Tensor wide_weights(const at::Tensor& weights_C, const at::Tensor& like) {
  return weights_C.defined() ? weights_C.to(accumulate_type(like.scalar_type())).contiguous() : weights_C;
}

}  // namespace

at::Tensor gpu_swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C) {
  const i64 copies = gate_up_C2F.size(0), width = gate_up_C2F.size(1) / 2;
  at::Tensor act = at::empty({copies, width}, gate_up_C2F.options());
  const at::Tensor in = gate_up_C2F.contiguous(), weights = wide_weights(weights_C, in);
  const bool packed = is_packed(width, {in, act});
  kernels::launch(
      "swiglu_forward", {in.scalar_type()},
      {.blocks = kernels::blocks_for(copies), .threads = kernels::threads_for(steps_of(width, packed, in))},
      kernels::SwigluForward{in.const_data_ptr(), data_or_null(weights), act.mutable_data_ptr(), copies,
                             width, packed},
      in.device());
  return act;
}

void gpu_swiglu_backward(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF) {
  const i64 copies = gate_up_C2F.size(0), width = gate_up_C2F.size(1) / 2;
  const at::Tensor weights = wide_weights(weights_C, gate_up_C2F);
  const bool converts = weights_C.defined() && out.dweights_C.scalar_type() != weights.scalar_type();
  const at::Tensor dweights = converts ? at::empty_like(weights) : out.dweights_C;
  const bool packed = is_packed(width, {gate_up_C2F, dact_CF, out.dgate_up_C2F, out.act_CF});
  kernels::launch(
      "swiglu_backward", {gate_up_C2F.scalar_type()},
      {.blocks = kernels::blocks_for(copies),
       .threads = kernels::threads_for(steps_of(width, packed, gate_up_C2F))},
      kernels::SwigluBackward{gate_up_C2F.const_data_ptr(), data_or_null(weights), dact_CF.const_data_ptr(),
                              out.dgate_up_C2F.mutable_data_ptr(), mutable_data_or_null(out.act_CF),
                              mutable_data_or_null(dweights), copies, width, packed},
      gate_up_C2F.device());
  if (converts) out.dweights_C.copy_(dweights);
}

}  // namespace hetermoe
