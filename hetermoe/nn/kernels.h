#pragma once
#include <ATen/ATen.h>

#include <cmath>

#include "hetermoe/base/types.h"

// Element-wise steps as pairs of forward and backward. On the CPU in fp32 each is one pass over memory; every
// other dtype and device goes through ATen. `Path::kGeneric` forces the ATen form: tests compare the two.
namespace hetermoe {

enum class Path { kAuto, kGeneric };

/// act = weight * silu(gate) * up for gate_up_C2F (gate columns first); weights_C undefined = 1. Result [C,
/// F] in the dtype of gate_up.
at::Tensor swiglu_forward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                          Path path = Path::kAuto);

struct SwigluGradient {
  at::Tensor dgate_up_C2F;
  at::Tensor act_CF;      ///< forward's result, weights included; only if asked for
  at::Tensor dweights_C;  ///< if weights_C is defined
};
enum class RecomputeAct { kNo, kYes };
/// dact_CF: gradient of the result of forward.
SwigluGradient swiglu_backward(const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                               const at::Tensor& dact_CF, RecomputeAct recompute_act,
                               Path path = Path::kAuto);
/// The same into given tensors; act_CF may be undefined. dgate_up_C2F may be gate_up_C2F itself, and act_CF
/// may be dact_CF.
void swiglu_backward_out(SwigluGradient& out, const at::Tensor& gate_up_C2F, const at::Tensor& weights_C,
                         const at::Tensor& dact_CF, Path path = Path::kAuto);

struct NormForward {
  at::Tensor out;   ///< dtype of x
  at::Tensor rstd;  ///< [rows], accumulate_type: 1 / root mean square of each row
};
/// out = weight * x / rms(x) over the last dimension, x_RD contiguous [..., D].
NormForward rms_norm_forward(const at::Tensor& x, const at::Tensor& weight_D, double eps,
                             Path path = Path::kAuto);

struct NormGradient {
  at::Tensor dx, dweight_D;
};
NormGradient rms_norm_backward(const at::Tensor& x, const at::Tensor& weight_D, const at::Tensor& rstd,
                               const at::Tensor& dout, Path path = Path::kAuto);

/// Tables of the rotation [S, dim/2] in accumulate_type: position * theta^(-2i/dim).
struct RopeTable {
  at::Tensor cos, sin;
};
RopeTable rope_table(i64 seq_len, i64 dim, double theta, const at::TensorOptions& options);
enum class RopeLayout { kHalves, kPairs };  ///< element i turns with i + dim/2, or 2i with 2i + 1
enum class RopeDirection { kForward, kBackward };
/// x: [B, S, heads, dim]; the backward direction turns by the negative angle: the gradient.
at::Tensor rotate(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout,
                  RopeDirection direction);

/// Sum of squares of floats in fp64, order of the additions fixed.
double sum_of_squares(const float* values, i64 count);

// The same steps inside autograd graphs.
at::Tensor swiglu(const at::Tensor& gate_up_C2F);
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight_D, double eps);
at::Tensor rope(const at::Tensor& x_BShd, const RopeTable& table, RopeLayout layout);

/// softmax(scale * q k^T) v with a causal mask: on the CPU in fp32 by cpu_attention, else by the fused kernel
/// of the device where there is one. [B, S, heads, *]; the width of v may differ from that of q and k; k and
/// v may have fewer heads. Returns [B, S, heads, width of v].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v, double scale,
                            Path path = Path::kAuto);

struct HeadShape {
  i64 seq_len, num_heads, num_kv_heads, dim;
  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
};
/// causal_attention of a fused projection [B * S, (heads + 2 kv_heads) * dim], q and k turned: [B * S, heads
/// * dim]. Uses qkv up: it may be overwritten.
at::Tensor rotary_attention(const at::Tensor& qkv, const HeadShape& shape, const RopeTable& table,
                            RopeLayout layout, Path path = Path::kAuto);

}  // namespace hetermoe
