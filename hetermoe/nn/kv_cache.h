#pragma once
#include "hetermoe/nn/attention.h"
#include "hetermoe/nn/attention_part.h"
#include "hetermoe/nn/rope.h"

// Attention that goes on from keys and values of the tokens before: for reading and writing text, without
// gradients.
namespace hetermoe {

/// Keys and values of one layer and one text.
struct KvCache {
  i64 size = 0;             ///< tokens so far
  at::Tensor keys, values;  ///< [1, capacity, heads, *], of which the first `size` tokens are filled
  RopeTable rope;           ///< of all positions up to the capacity
  i64 capacity() const { return keys.size(1); }
};
/// Room for so many tokens. Rotary embeddings that stretch with the text (dynamic) are those of a text of
/// this length.
KvCache make_kv_cache(const ModelConfig& model, i64 capacity, const at::TensorOptions& options);

/// self_attention of the next tokens of the text, whose keys and values are added to the cache.
at::Tensor decode_attention(const ModelConfig& model, i64 layer, const Leaves& leaves,
                            const at::Tensor& normed_TH, KvCache& cache);
/// attention_forward of the next tokens of the text.
AttentionOutput attention_decode(const ModelConfig& model, i64 layer, const StateGroup& state,
                                 const at::Tensor& y_TD, KvCache& cache);

}  // namespace hetermoe
