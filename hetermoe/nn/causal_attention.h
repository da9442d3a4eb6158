#pragma once
#include <ATen/ATen.h>

#include <cmath>
#include <span>

#include "hetermoe/nn/path.h"
#include "hetermoe/nn/rope.h"

// Attention with a causal mask, inside autograd graphs.
namespace hetermoe {

struct AttentionHow {
  double scale;    ///< of the scores
  i64 window = 0;  ///< tokens that a token attends to, itself included; 0 = all before it
  std::span<const i64> documents = {};  ///< see Sequences
  /// [heads of q] one more score in each softmax of a head, whose value is zero. Undefined = there are none.
  at::Tensor sinks = {};
};
/// softmax(scale * q k^T) v with a causal mask. On the CPU cpu_attention computes it, but not in fp64, not
/// with sinks, and not with a window shorter than the sequence. Else the fused kernel of the device computes
/// it, if there is one. Documents are computed one after another, each as a sequence of its own. [B, S,
/// heads, *]; the width of v may differ from that of q and k; k and v may have fewer heads. Returns [B, S,
/// heads, width of v].
at::Tensor causal_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionHow& how, Path path = Path::kAuto);

/// The same for queries that are the last of as many positions as there are keys, without gradients: what a
/// cache of keys and values serves.
at::Tensor cached_attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                            const AttentionHow& how);

struct HeadShape {
  i64 seq_len, num_heads, num_kv_heads, dim;
  i64 window = 0;
  std::span<const i64> documents = {};  ///< see Sequences
  at::Tensor sinks = {};                ///< see AttentionHow
  AttentionHow how() const { return {scale(), window, documents, sinks}; }
  double scale() const { return 1 / std::sqrt(static_cast<double>(dim)); }
};
/// causal_attention of a fused projection [B * S, (heads + 2 kv_heads) * dim], q and k turned: [B * S, heads
/// * dim]. Uses qkv up: it may be overwritten.
at::Tensor rotary_attention(const at::Tensor& qkv, const HeadShape& shape, const RopeTable& table,
                            RopeLayout layout, Path path = Path::kAuto);

}  // namespace hetermoe
