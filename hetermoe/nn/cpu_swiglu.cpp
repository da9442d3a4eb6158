#include <ATen/Parallel.h>

#include <vector>

#include "hetermoe/nn/cpu_kernels.h"
#include "hetermoe/nn/cpu_rows.h"
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

const float* weights_of(const at::Tensor& weights_C) {
  return weights_C.defined() ? weights_C.const_data_ptr<float>() : nullptr;
}

template <class T>
void forward_rows(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C, const at::Tensor& act_CF) {
  const i64 copies = gate_up_C2F.size(0), width = gate_up_C2F.size(1) / 2;
  const T* in = gate_up_C2F.const_data_ptr<T>();
  const float* w = weights_of(weights_C);
  T* out = act_CF.mutable_data_ptr<T>();
  at::parallel_for(0, copies, rows_per_task(width), [&](i64 begin, i64 end) {
    FloatRow<T> gate_up_row(2 * width), act_row(width);
    for (i64 c = begin; c < end; ++c) {
      const float* gate_up = gate_up_row.read(in + 2 * c * width);
      swiglu_row(gate_up, gate_up + width, w != nullptr ? w[c] : 1.0f, act_row.place(out + c * width), width);
      act_row.write(out + c * width);
    }
  });
}

template <class T>
void backward_rows(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                   const at::Tensor& dact_CF) {
  const i64 copies = gate_up_C2F.size(0), width = gate_up_C2F.size(1) / 2;
  const T* in = gate_up_C2F.const_data_ptr<T>();
  const T* d = dact_CF.const_data_ptr<T>();
  const float* w = weights_of(weights_C);
  T* din = out.dgate_up_C2F.mutable_data_ptr<T>();
  T* act = out.act_CF.defined() ? out.act_CF.mutable_data_ptr<T>() : nullptr;
  float* dw = w != nullptr ? out.dweights_C.mutable_data_ptr<float>() : nullptr;
  at::parallel_for(0, copies, rows_per_task(width), [&](i64 begin, i64 end) {
    FloatRow<T> gate_up_row(2 * width), dact_row(width), din_row(2 * width), act_row(width);
    std::vector<float> unused(act == nullptr ? static_cast<std::size_t>(width) : 0);
    for (i64 c = begin; c < end; ++c) {
      const i64 at2 = 2 * c * width, at = c * width;
      const float* gate_up = gate_up_row.read(in + at2);
      float* grad = din_row.place(din + at2);
      const float sum =
          swiglu_grad_row(gate_up, gate_up + width, w != nullptr ? w[c] : 1.0f, dact_row.read(d + at), grad,
                          grad + width, act != nullptr ? act_row.place(act + at) : unused.data(), width);
      din_row.write(din + at2);
      if (act != nullptr) act_row.write(act + at);
      if (dw != nullptr) dw[c] = sum;
    }
  });
}

}  // namespace

at::Tensor cpu_swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C) {
  at::Tensor act = at::empty({gate_up_C2F.size(0), gate_up_C2F.size(1) / 2}, gate_up_C2F.options());
  with_row_type(gate_up_C2F, [&](auto of) { forward_rows<decltype(of)>(gate_up_C2F, weights_C, act); });
  return act;
}

void cpu_swiglu_backward(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF) {
  with_row_type(gate_up_C2F,
                [&](auto of) { backward_rows<decltype(of)>(out, gate_up_C2F, weights_C, dact_CF); });
}

}  // namespace hetermoe
