#include <ATen/Parallel.h>

#include <vector>

#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/simd.h"

namespace hetermoe {
namespace {

HM_CLONES void swiglu_row(const float* __restrict gate, const float* __restrict up, float weight,
                          float* __restrict act, i64 width) {
  for (i64 i = 0; i < width; ++i) act[i] = weight * (gate[i] / (1.0f + fast_exp(-gate[i]))) * up[i];
}

/// Writes the gradients and the weighted activation of one row; returns dact . silu(gate) * up, the gradient
/// of the weight. Each output may be the input of the same index: hence no __restrict but ivdep.
HM_CLONES float swiglu_grad_row(const float* gate, const float* up, float weight, const float* dact,
                                float* dgate, float* dup, float* act, i64 width) {
  constexpr i64 kChunk = 128, kLanes = 16;
  float product[kChunk], sums[kLanes] = {};
  for (i64 begin = 0; begin < width; begin += kChunk) {
    const i64 count = std::min(kChunk, width - begin);
#pragma GCC ivdep
    for (i64 j = 0; j < count; ++j) {
      const i64 i = begin + j;
      const float sigmoid = 1.0f / (1.0f + fast_exp(-gate[i]));
      const float silu = gate[i] * sigmoid, plain = silu * up[i], d = weight * dact[i];
      const float grad_up = d * silu, grad_gate = d * up[i] * (sigmoid + silu * (1.0f - sigmoid));
      product[j] = dact[i] * plain;
      dgate[i] = grad_gate;
      dup[i] = grad_up;
      act[i] = weight * plain;
    }
    for (i64 j = count; j < kChunk; ++j) product[j] = 0;
    for (i64 j = 0; j < kChunk; j += kLanes) {
      for (i64 lane = 0; lane < kLanes; ++lane) sums[lane] += product[j + lane];
    }
  }
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

}  // namespace

at::Tensor cpu_swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C) {
  const i64 copies = gate_up_C2F.size(0), width = gate_up_C2F.size(1) / 2;
  at::Tensor act = at::empty({copies, width}, gate_up_C2F.options());
  const float* in = gate_up_C2F.const_data_ptr<float>();
  const float* w = weights_C.defined() ? weights_C.const_data_ptr<float>() : nullptr;
  float* out = act.mutable_data_ptr<float>();
  at::parallel_for(0, copies, rows_per_task(width), [&](i64 begin, i64 end) {
    for (i64 c = begin; c < end; ++c) {
      swiglu_row(in + 2 * c * width, in + (2 * c + 1) * width, w != nullptr ? w[c] : 1.0f, out + c * width,
                 width);
    }
  });
  return act;
}

void cpu_swiglu_backward(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF) {
  const i64 copies = gate_up_C2F.size(0), width = gate_up_C2F.size(1) / 2;
  const float* in = gate_up_C2F.const_data_ptr<float>();
  const float* d = dact_CF.const_data_ptr<float>();
  const float* w = weights_C.defined() ? weights_C.const_data_ptr<float>() : nullptr;
  float* din = out.dgate_up_C2F.mutable_data_ptr<float>();
  float* act = out.act_CF.defined() ? out.act_CF.mutable_data_ptr<float>() : nullptr;
  float* dw = w != nullptr ? out.dweights_C.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, copies, rows_per_task(width), [&](i64 begin, i64 end) {
    std::vector<float> unused(act == nullptr ? static_cast<std::size_t>(width) : 0);
    for (i64 c = begin; c < end; ++c) {
      const i64 at2 = 2 * c * width;
      const float sum =
          swiglu_grad_row(in + at2, in + at2 + width, w != nullptr ? w[c] : 1.0f, d + c * width, din + at2,
                          din + at2 + width, act != nullptr ? act + c * width : unused.data(), width);
      if (dw != nullptr) dw[c] = sum;
    }
  });
}

}  // namespace hetermoe
