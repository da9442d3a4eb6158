#pragma once
#include "hetermoe/base/types.h"

// Causal attention on a CPU, in fp32 inside whatever the rows are, in blocks whose scores stay in the cache
// (FlashAttention, arXiv 2205.14135): nothing of size S x S is ever in memory, and blocks above the diagonal
// are not computed.
namespace hetermoe {

enum class Element { kFloat, kBFloat16, kHalf };

/// Rows of [sequence, token, head]; the elements of a row lie side by side. Strides in elements.
struct HeadRows {
  void* data = nullptr;
  i64 sequence = 0, token = 0, head = 0;
  Element element = Element::kFloat;
  i64 offset(i64 b, i64 t, i64 h) const { return b * sequence + t * token + h * head; }
};

struct AttentionShape {
  i64 num_sequences = 0, seq_len = 0;
  i64 num_heads = 0, num_kv_heads = 0;  ///< num_kv_heads divides num_heads
  i64 dim = 0, v_dim = 0;               ///< widths of q and k, and of v and out
  float scale = 1;                      ///< of the scores
};

/// Whether the kernels below take it: widths are multiples of 8.
bool fits_cpu_attention(const AttentionShape& shape);

/// out = softmax(scale * q k^T, keys up to the query's own position) v. log_sums [sequences, heads, S]:
/// logarithm of the sum of exponentials of each row of scores.
void cpu_attention_forward(const AttentionShape& shape, const HeadRows& q, const HeadRows& k,
                           const HeadRows& v, const HeadRows& out, float* log_sums);

/// Tensors that backward reads and writes; dq, dk, dv are overwritten.
struct AttentionGradients {
  HeadRows q, k, v, out, dout;
  const float* log_sums = nullptr;  ///< of forward
  HeadRows dq, dk, dv;
};
void cpu_attention_backward(const AttentionShape& shape, const AttentionGradients& g);

}  // namespace hetermoe
