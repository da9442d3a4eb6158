#include "hetermoe/nn/kernels.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cmath>
#include <vector>

#include "hetermoe/nn/cpu_attention.h"
#include "hetermoe/nn/params.h"
#include "hetermoe/nn/simd.h"

namespace hetermoe {
namespace {

constexpr i64 kElementsPerTask = 16384;

bool is_cpu_float(const at::Tensor& x) { return x.device().is_cpu() && x.scalar_type() == at::kFloat; }

bool fast(const at::Tensor& tensor, Path path) {
  return path == Path::kAuto && is_cpu_float(tensor) && tensor.is_contiguous();
}

i64 rows_per_task(i64 width) { return std::max<i64>(1, kElementsPerTask / std::max<i64>(1, width)); }

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

void swiglu_backward_fast(const at::Tensor& gate_up, const at::Tensor& weights, const at::Tensor& dact,
                          SwigluGradient& out) {
  const i64 copies = gate_up.size(0), width = gate_up.size(1) / 2;
  const float* in = gate_up.const_data_ptr<float>();
  const float* d = dact.const_data_ptr<float>();
  const float* w = weights.defined() ? weights.const_data_ptr<float>() : nullptr;
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

HM_CLONES float square_sum(const float* x, i64 width) {
  constexpr i64 kLanes = 16;
  float sums[kLanes] = {};
  i64 i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (i64 lane = 0; lane < kLanes; ++lane) sums[lane] += x[i + lane] * x[i + lane];
  }
  for (; i < width; ++i) sums[0] += x[i] * x[i];
  float total = 0;
  for (const float sum : sums) total += sum;
  return total;
}

HM_CLONES void scale_row(const float* x, const float* weight, float factor, float* out, i64 width) {
  for (i64 i = 0; i < width; ++i) out[i] = weight[i] * (x[i] * factor);
}

/// dx of one row; adds the row's part of dweight.
HM_CLONES void norm_grad_row(const float* x, const float* weight, float rstd, const float* dout, float* dx,
                             float* dweight, i64 width) {
  constexpr i64 kLanes = 16;
  float sums[kLanes] = {};
  i64 i = 0;
  for (; i + kLanes <= width; i += kLanes) {
    for (i64 lane = 0; lane < kLanes; ++lane) sums[lane] += dout[i + lane] * weight[i + lane] * x[i + lane];
  }
  for (; i < width; ++i) sums[0] += dout[i] * weight[i] * x[i];
  float dot = 0;
  for (const float sum : sums) dot += sum;
  const float mean = dot * rstd * rstd / static_cast<float>(width);
  for (i64 j = 0; j < width; ++j) {
    dx[j] = rstd * (dout[j] * weight[j] - x[j] * mean);
    dweight[j] += dout[j] * (x[j] * rstd);
  }
}

NormGradient norm_backward_fast(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& rstd,
                                const at::Tensor& dout) {
  const i64 width = x.size(-1), rows = rstd.numel();
  NormGradient out{at::empty_like(x), at::Tensor()};
  const float* xp = x.const_data_ptr<float>();
  const float* wp = weight.const_data_ptr<float>();
  const float* rp = rstd.const_data_ptr<float>();
  const float* dp = dout.const_data_ptr<float>();
  float* dxp = out.dx.mutable_data_ptr<float>();
  // Partial sums over fixed blocks of rows, added in block order: the same result with any number of threads.
  constexpr i64 kBlocks = 16;
  at::Tensor partial = at::zeros({kBlocks, width}, x.options());
  float* pp = partial.mutable_data_ptr<float>();
  at::parallel_for(0, kBlocks, std::max<i64>(1, kBlocks * rows_per_task(width) / std::max<i64>(1, rows)),
                   [&](i64 begin, i64 end) {
                     for (i64 block = begin; block < end; ++block) {
                       for (i64 r = rows * block / kBlocks; r < rows * (block + 1) / kBlocks; ++r) {
                         norm_grad_row(xp + r * width, wp, rp[r], dp + r * width, dxp + r * width,
                                       pp + block * width, width);
                       }
                     }
                   });
  out.dweight_D = partial.sum(0);
  return out;
}

}  // namespace

HM_CLONES double sum_of_squares(const float* values, i64 count) {
  constexpr i64 kLanes = 16;
  double sums[kLanes] = {};
  i64 i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (i64 lane = 0; lane < kLanes; ++lane) {
      const double x = values[i + lane];
      sums[lane] += x * x;
    }
  }
  for (; i < count; ++i) sums[0] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

at::Tensor swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C, Path path) {
  const i64 copies = gate_up_C2F.size(0), width = gate_up_C2F.size(1) / 2;
  if (!fast(gate_up_C2F, path)) {
    const at::Tensor gate = gate_up_C2F.narrow(1, 0, width), up = gate_up_C2F.narrow(1, width, width);
    const at::Tensor act = at::silu(gate) * up;
    return weights_C.defined() ? (act * weights_C.unsqueeze(1)).to(act.scalar_type()) : act;
  }
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

SwigluGradient swiglu_backward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                               const at::Tensor& dact_CF, RecomputeAct recompute_act, Path path) {
  SwigluGradient out{at::empty_like(gate_up_C2F), {}, {}};
  if (recompute_act == RecomputeAct::kYes) out.act_CF = at::empty_like(dact_CF);
  if (weights_C.defined()) out.dweights_C = at::empty_like(weights_C);
  swiglu_backward_out(out, gate_up_C2F, weights_C, dact_CF, path);
  return out;
}

void swiglu_backward_out(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF, Path path) {
  if (fast(gate_up_C2F, path)) {
    swiglu_backward_fast(gate_up_C2F, weights_C, dact_CF.contiguous(), out);
    return;
  }
  const i64 width = gate_up_C2F.size(1) / 2;
  const at::ScalarType wide = accumulate_type(gate_up_C2F.scalar_type());
  const at::Tensor gate = gate_up_C2F.narrow(1, 0, width).to(wide),
                   up = gate_up_C2F.narrow(1, width, width).to(wide);
  const at::Tensor sigmoid = gate.sigmoid(), silu = gate * sigmoid, plain = silu * up,
                   dact = dact_CF.to(wide);
  const at::Tensor d = weights_C.defined() ? dact * weights_C.unsqueeze(1) : dact;
  // All is computed before anything is written: the outputs may be the inputs.
  const at::Tensor dgate_up = at::cat({d * up * (sigmoid + silu * (1 - sigmoid)), d * silu}, 1);
  if (weights_C.defined()) out.dweights_C.copy_((dact * plain).sum(1));
  if (out.act_CF.defined()) out.act_CF.copy_(weights_C.defined() ? plain * weights_C.unsqueeze(1) : plain);
  out.dgate_up_C2F.copy_(dgate_up);
}

NormForward rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps, Path path) {
  const i64 width = x.size(-1), rows = width == 0 ? 0 : x.numel() / width;
  if (!fast(x, path)) {
    const at::Tensor wide = x.to(accumulate_type(x.scalar_type()));
    const at::Tensor rstd = (wide.square().mean(-1, true) + eps).rsqrt();
    return {weight_D * (wide * rstd).to(x.scalar_type()), rstd.reshape({rows})};
  }
  NormForward out{at::empty_like(x), at::empty({rows}, x.options())};
  const float* xp = x.const_data_ptr<float>();
  const float* wp = weight_D.const_data_ptr<float>();
  float* op = out.out.mutable_data_ptr<float>();
  float* rp = out.rstd.mutable_data_ptr<float>();
  at::parallel_for(0, rows, rows_per_task(width), [&](i64 begin, i64 end) {
    for (i64 r = begin; r < end; ++r) {
      const float mean = square_sum(xp + r * width, width) / static_cast<float>(width);
      rp[r] = 1.0f / std::sqrt(mean + static_cast<float>(eps));
      scale_row(xp + r * width, wp, rp[r], op + r * width, width);
    }
  });
  return out;
}

NormGradient rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                               const at::Tensor& dout, Path path) {
  if (fast(x, path)) return norm_backward_fast(x, weight_D, rstd, dout.contiguous());
  const at::ScalarType wide = rstd.scalar_type();
  const i64 width = x.size(-1);
  const at::Tensor scale = rstd.unsqueeze(-1);
  const at::Tensor normed = x.reshape({-1, width}).to(wide) * scale, d = dout.reshape({-1, width}).to(wide);
  const at::Tensor weighted = d * weight_D.to(wide);
  const at::Tensor dx = scale * (weighted - normed * (weighted * normed).mean(-1, true));
  return {dx.to(x.scalar_type()).view_as(x), (d * normed).sum(0).to(weight_D.scalar_type())};
}

RopeTable rope_table(i64 seq_len, i64 dim, double theta, const at::TensorOptions& options) {
  // Angles in fp64: in fp32 a late position would turn by an angle with few right digits.
  const at::TensorOptions wide = options.dtype(at::kDouble);
  const at::Tensor frequency = at::pow(theta, at::arange(0, dim, 2, wide) / -static_cast<double>(dim));
  const at::Tensor angle = at::outer(at::arange(seq_len, wide), frequency);
  const at::ScalarType dtype = accumulate_type(c10::typeMetaToScalarType(options.dtype()));
  return {angle.cos().to(dtype), angle.sin().to(dtype)};
}

namespace {

at::Tensor rotate_generic(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout,
                          RopeDirection direction) {
  const i64 half = x_BShd.size(-1) / 2;
  const bool pairs = layout == RopeLayout::kPairs;
  const at::Tensor x = x_BShd.unflatten(-1, pairs ? at::IntArrayRef{half, 2} : at::IntArrayRef{2, half});
  const i64 part = pairs ? -1 : -2;
  const at::Tensor first = x.select(part, 0), second = x.select(part, 1);
  const at::Tensor cos = table.cos.unsqueeze(1);
  const at::Tensor sin =
      direction == RopeDirection::kForward ? table.sin.unsqueeze(1) : -table.sin.unsqueeze(1);
  const at::Tensor turned = at::stack({first * cos - second * sin, second * cos + first * sin}, part);
  return turned.flatten(-2).to(x_BShd.scalar_type());
}

/// sign = 1 turns forward, -1 back. out may be x: hence ivdep instead of __restrict.
HM_CLONES void turn_halves(const float* x, const float* cos, const float* sin, float sign, float* out,
                           i64 half) {
#pragma GCC ivdep
  for (i64 i = 0; i < half; ++i) {
    const float s = sign * sin[i], first = x[i], second = x[half + i];
    out[i] = first * cos[i] - second * s;
    out[half + i] = second * cos[i] + first * s;
  }
}

HM_CLONES void turn_pairs(const float* x, const float* cos, const float* sin, float sign, float* out,
                          i64 half) {
#pragma GCC ivdep
  for (i64 i = 0; i < half; ++i) {
    const float s = sign * sin[i], first = x[2 * i], second = x[2 * i + 1];
    out[2 * i] = first * cos[i] - second * s;
    out[2 * i + 1] = second * cos[i] + first * s;
  }
}

/// out = x turned; out may be x. Both [B, S, heads, dim] of any strides but 1 in the last dimension.
void turn_into(const at::Tensor& out, const at::Tensor& x, const RopeTable& table, RopeLayout layout,
               RopeDirection direction) {
  const i64 seq_len = x.size(1), num_heads = x.size(2), dim = x.size(3);
  const float* from = x.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  const float* cos = table.cos.const_data_ptr<float>();
  const float* sin = table.sin.const_data_ptr<float>();
  const float sign = direction == RopeDirection::kForward ? 1.0f : -1.0f;
  at::parallel_for(0, x.size(0) * seq_len, rows_per_task(num_heads * dim), [&](i64 begin, i64 end) {
    for (i64 token = begin; token < end; ++token) {
      const i64 b = token / seq_len, s = token % seq_len;
      for (i64 h = 0; h < num_heads; ++h) {
        const float* source = from + b * x.stride(0) + s * x.stride(1) + h * x.stride(2);
        float* target = to + b * out.stride(0) + s * out.stride(1) + h * out.stride(2);
        if (layout == RopeLayout::kHalves) {
          turn_halves(source, cos + s * dim / 2, sin + s * dim / 2, sign, target, dim / 2);
        } else {
          turn_pairs(source, cos + s * dim / 2, sin + s * dim / 2, sign, target, dim / 2);
        }
      }
    }
  });
}

}  // namespace

at::Tensor rotate(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout,
                  RopeDirection direction) {
  const bool fast = is_cpu_float(x_BShd) && x_BShd.stride(-1) == 1;
  if (!fast) return rotate_generic(x_BShd, table, layout, direction);
  at::Tensor out = at::empty(x_BShd.sizes(), x_BShd.options());
  turn_into(out, x_BShd, table, layout, direction);
  return out;
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

struct RmsNormFunction : torch::autograd::Function<RmsNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            double eps) {
    const NormForward out = rms_norm_forward(x, weight, eps);
    context->save_for_backward({x, weight, out.rstd});
    return out.out;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    NormGradient out = rms_norm_backward(saved[0], saved[1], saved[2], grads[0]);
    return {out.dx, out.dweight_D, at::Tensor()};
  }
};

struct RopeFunction : torch::autograd::Function<RopeFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& cos,
                            const at::Tensor& sin, i64 layout) {
    context->save_for_backward({cos, sin});
    context->saved_data["layout"] = layout;
    return rotate(x, {cos, sin}, static_cast<RopeLayout>(layout), RopeDirection::kForward);
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const auto layout = static_cast<RopeLayout>(context->saved_data["layout"].toInt());
    return {rotate(grads[0], {saved[0], saved[1]}, layout, RopeDirection::kBackward), at::Tensor(),
            at::Tensor(), at::Tensor()};
  }
};

/// Views of a fused projection [T, (heads + 2 kv_heads) * dim]: q, k, v as [B, S, heads, dim].
std::vector<at::Tensor> head_views(const at::Tensor& qkv, const HeadShape& shape) {
  const at::Tensor heads = qkv.view({-1, shape.seq_len, shape.num_heads + 2 * shape.num_kv_heads, shape.dim});
  return heads.split_with_sizes({shape.num_heads, shape.num_kv_heads, shape.num_kv_heads}, 2);
}

HeadRows head_rows(const at::Tensor& x_BShd) {
  return {x_BShd.mutable_data_ptr<float>(), x_BShd.stride(0), x_BShd.stride(1), x_BShd.stride(2)};
}

AttentionShape attention_shape(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  return {q.size(0), q.size(1), q.size(2), k.size(2), q.size(3), v.size(3), static_cast<float>(scale)};
}

/// What attention keeps for its backward.
struct AttentionForward {
  at::Tensor out_BShd, log_sums_BhS;
};

AttentionForward cpu_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  AttentionForward out{at::empty({q.size(0), q.size(1), q.size(2), v.size(3)}, q.options()),
                       at::empty({q.size(0), q.size(2), q.size(1)}, q.options())};
  cpu_attention_forward(attention_shape(q, k, v, scale), head_rows(q), head_rows(k), head_rows(v),
                        head_rows(out.out_BShd), out.log_sums_BhS.mutable_data_ptr<float>());
  return out;
}

/// parts, dparts: q, k, v and where their gradients go.
void cpu_attention_gradients(const std::vector<at::Tensor>& parts, const AttentionForward& forward,
                             const at::Tensor& dout, const std::vector<at::Tensor>& dparts, double scale) {
  const at::Tensor d = dout.stride(-1) == 1 ? dout : dout.contiguous();
  cpu_attention_backward(
      attention_shape(parts[0], parts[1], parts[2], scale),
      {head_rows(parts[0]), head_rows(parts[1]), head_rows(parts[2]), head_rows(forward.out_BShd),
       head_rows(d), forward.log_sums_BhS.const_data_ptr<float>(), head_rows(dparts[0]), head_rows(dparts[1]),
       head_rows(dparts[2])});
}

struct CausalAttentionFunction : torch::autograd::Function<CausalAttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v, double scale) {
    const AttentionForward out = cpu_attention(q, k, v, scale);
    context->save_for_backward({q, k, v, out.out_BShd, out.log_sums_BhS});
    context->saved_data["scale"] = scale;
    return out.out_BShd;
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const variable_list dparts = {at::empty(saved[0].sizes(), saved[0].options()),
                                  at::empty(saved[1].sizes(), saved[1].options()),
                                  at::empty(saved[2].sizes(), saved[2].options())};
    cpu_attention_gradients({saved[0], saved[1], saved[2]}, {saved[3], saved[4]}, grads[0], dparts,
                            context->saved_data["scale"].toDouble());
    return {dparts[0], dparts[1], dparts[2], at::Tensor()};
  }
};

/// Rotates q and k inside the projection's own memory: its backward needs its input alone, so that nobody
/// misses what was there.
struct RotaryAttentionFunction : torch::autograd::Function<RotaryAttentionFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv, const at::Tensor& cos,
                            const at::Tensor& sin, const HeadShape& shape, i64 layout) {
    const std::vector<at::Tensor> parts = head_views(qkv, shape);
    for (std::size_t i = 0; i < 2; ++i)
      turn_into(parts[i], parts[i], {cos, sin}, static_cast<RopeLayout>(layout), RopeDirection::kForward);
    const AttentionForward out = cpu_attention(parts[0], parts[1], parts[2], shape.scale());
    context->save_for_backward({qkv, out.out_BShd, out.log_sums_BhS, cos, sin});
    context->saved_data["shape"] =
        std::vector<i64>{shape.seq_len, shape.num_heads, shape.num_kv_heads, shape.dim, layout};
    return out.out_BShd.view({qkv.size(0), -1});
  }
  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const variable_list saved = context->get_saved_variables();
    const std::vector<i64> numbers = context->saved_data["shape"].toIntVector();
    const HeadShape shape{numbers[0], numbers[1], numbers[2], numbers[3]};
    const at::Tensor dqkv = at::empty(saved[0].sizes(), saved[0].options());
    const std::vector<at::Tensor> dparts = head_views(dqkv, shape);
    cpu_attention_gradients(head_views(saved[0], shape), {saved[1], saved[2]},
                            grads[0].reshape(saved[1].sizes()), dparts, shape.scale());
    for (std::size_t i = 0; i < 2; ++i) {
      turn_into(dparts[i], dparts[i], {saved[3], saved[4]}, static_cast<RopeLayout>(numbers[4]),
                RopeDirection::kBackward);
    }
    return {dqkv, at::Tensor(), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

at::Tensor pad_width(const at::Tensor& x, i64 width) {
  return x.size(-1) == width ? x : at::constant_pad_nd(x, {0, width - x.size(-1)});
}

/// [B, h, S, dim] with every head as often as query heads share it.
at::Tensor repeat_heads(const at::Tensor& x, i64 num_heads) {
  const i64 times = num_heads / x.size(1);
  if (times == 1) return x;
  return x.unsqueeze(2).expand({x.size(0), x.size(1), times, x.size(2), x.size(3)}).flatten(1, 2);
}

/// By the device's fused kernel, which wants equal widths and heads. Zero columns change nothing: neither the
/// scores nor the kept columns.
at::Tensor generic_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale) {
  const i64 width = std::max(q.size(-1), v.size(-1)), num_heads = q.size(2);
  const auto operand = [&](const at::Tensor& x) {
    return pad_width(repeat_heads(x.transpose(1, 2), num_heads), width);
  };
  const at::Tensor out =
      at::scaled_dot_product_attention(operand(q), operand(k), operand(v), /*attn_mask=*/{},
                                       /*dropout_p=*/0.0, /*is_causal=*/true, scale);
  return out.narrow(-1, 0, v.size(-1)).transpose(1, 2);
}

}  // namespace

at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                            Path path) {
  const bool own =
      path == Path::kAuto && is_cpu_float(q) && fits_cpu_attention(attention_shape(q, k, v, scale));
  if (!own) return generic_attention(q, k, v, scale);
  const auto rows = [](const at::Tensor& x) { return x.stride(-1) == 1 ? x : x.contiguous(); };
  return CausalAttentionFunction::apply(rows(q), rows(k), rows(v), scale);
}

at::Tensor rotary_attention(const at::Tensor& qkv, const HeadShape& shape, const RopeTable& table,
                            RopeLayout layout, Path path) {
  const std::vector<at::Tensor> parts = head_views(qkv, shape);
  if (fast(qkv, path) && fits_cpu_attention(attention_shape(parts[0], parts[1], parts[2], shape.scale())))
    return RotaryAttentionFunction::apply(qkv, table.cos, table.sin, shape, static_cast<i64>(layout));
  return causal_attention(rope(parts[0], table, layout), rope(parts[1], table, layout), parts[2],
                          shape.scale(), path)
      .reshape({qkv.size(0), -1});
}

at::Tensor swiglu(const at::Tensor& gate_up_C2F) { return SwigluFunction::apply(gate_up_C2F); }

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_D, double eps) {
  return RmsNormFunction::apply(x, weight_D, eps);
}

at::Tensor rope(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout) {
  return RopeFunction::apply(x_BShd, table.cos, table.sin, static_cast<i64>(layout));
}

}  // namespace hetermoe
