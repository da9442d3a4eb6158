#include "hetermoe/nn/cpu_attention.h"

#include <ATen/Parallel.h>

#include <cmath>
#include <limits>
#include <type_traits>
#include <vector>

#include "hetermoe/nn/cpu_product.h"
#include "hetermoe/nn/cpu_rows.h"
#include "hetermoe/nn/simd.h"

namespace hetermoe {
namespace {

constexpr i64 kQueries = 48, kKeys = 96;  // of a block; a block of keys is whole blocks of queries

/// x becomes e^x, x <= 0; see fast_exp.
template <class V>
HM_INLINE void exponentiate(V& x) {
  using Int = std::conditional_t<sizeof(V) == sizeof(Int8), Int8, Int16>;
  const V least = V{} - 87.0f;
  const V y = x < least ? least : x;  // NaN stays NaN
  V n, p;
  split_exp(y, n, p);
  x = p * (V)((__builtin_convertvector(n, Int) + 127) << 23);  // the bits, not the value
}

/// Rows of floats.
struct FloatRows {
  const float* data;
  i64 row;
};

template <class T>
void widen_rows(const T* from, i64 from_row, i64 rows, i64 width, float* to) {
  for (i64 r = 0; r < rows; ++r) widen(from + r * from_row, to + r * width, width);
}

/// Tokens [first, first + count) of a head: in their place, or converted into `room`.
FloatRows read_rows(const HeadRows& x, i64 b, i64 first, i64 h, i64 count, i64 width, float* room) {
  const i64 at = x.offset(b, first, h);
  if (x.element == Element::kFloat) return {static_cast<const float*>(x.data) + at, x.token};
  if (x.element == Element::kBFloat16)
    widen_rows(static_cast<const at::BFloat16*>(x.data) + at, x.token, count, width, room);
  else
    widen_rows(static_cast<const at::Half*>(x.data) + at, x.token, count, width, room);
  return {room, width};
}

template <class T>
void narrow_rows(const float* from, i64 rows, i64 width, T* to, i64 to_row) {
  for (i64 r = 0; r < rows; ++r) narrow(from + r * width, to + r * to_row, width);
}

/// Rows of one head side by side, as the kernels read them again and again: at a stride of a power of two
/// they would push each other out of the cache.
HM_INLINE void pack(const FloatRows& from, i64 rows, i64 width, float factor, float* __restrict to) {
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < width; ++c) to[r * width + c] = factor * from.data[r * from.row + c];
  }
}

HM_INLINE void unpack(const float* __restrict from, i64 rows, i64 width, float factor, float* to,
                      i64 to_row) {
  for (i64 r = 0; r < rows; ++r) {
    for (i64 c = 0; c < width; ++c) to[r * to_row + c] = factor * from[r * width + c];
  }
}

/// Writes factor * from as tokens [first, first + rows) of a head; 16 bits by way of `from` itself.
HM_INLINE void write_rows(float* from, i64 rows, i64 width, float factor, const HeadRows& x, i64 b, i64 first,
                          i64 h) {
  const i64 at = x.offset(b, first, h);
  if (x.element == Element::kFloat)
    return unpack(from, rows, width, factor, static_cast<float*>(x.data) + at, x.token);
  for (i64 i = 0; i < rows * width; ++i) from[i] *= factor;
  if (x.element == Element::kBFloat16)
    narrow_rows(from, rows, width, static_cast<at::BFloat16*>(x.data) + at, x.token);
  else
    narrow_rows(from, rows, width, static_cast<at::Half*>(x.data) + at, x.token);
}

/// For every block of keys: to[column][key], padded with zeros to kKeys.
HM_INLINE void pack_transposed(const FloatRows& from, i64 rows, i64 width, float* __restrict to) {
  const i64 from_row = from.row;
  for (i64 begin = 0; begin < rows; begin += kKeys, to += width * kKeys) {
    for (i64 j = 0; j < kKeys; j += 8) {
      const float* row = from.data + (begin + j) * from_row;
      if (begin + j + 8 <= rows) {
        for (i64 c = 0; c < width; ++c) {
          *reinterpret_cast<Vector8*>(to + c * kKeys + j) = Vector8{row[c],
                                                                    row[c + from_row],
                                                                    row[c + 2 * from_row],
                                                                    row[c + 3 * from_row],
                                                                    row[c + 4 * from_row],
                                                                    row[c + 5 * from_row],
                                                                    row[c + 6 * from_row],
                                                                    row[c + 7 * from_row]};
        }
        continue;
      }
      for (i64 c = 0; c < width; ++c) {
        for (i64 k = 0; k < 8; ++k) to[c * kKeys + j + k] = begin + j + k < rows ? row[c + k * from_row] : 0;
      }
    }
  }
}

template <class V>
constexpr i64 kWidthOf = static_cast<i64>(sizeof(V) / sizeof(float));

template <class V>
HM_INLINE V& vector_at(float* x) {
  return *reinterpret_cast<V*>(x);
}

template <class V>
HM_INLINE const V& const_vector_at(const float* x) {
  return *reinterpret_cast<const V*>(x);
}

template <class V>
HM_INLINE float sum_of(const V& lanes) {
  float total = 0;
  for (i64 lane = 0; lane < kWidthOf<V>; ++lane) total += lanes[lane];
  return total;
}

/// Of a row with room for whole vectors.
template <class V>
HM_INLINE float largest(float* x, i64 count) {
  V top = V{} - std::numeric_limits<float>::infinity();
  i64 j = 0;
  for (; j + kWidthOf<V> <= count; j += kWidthOf<V>) {
    const V part = vector_at<V>(x + j);
    top = part > top ? part : top;
  }
  float best = -std::numeric_limits<float>::infinity();
  for (; j < count; ++j) best = std::max(best, x[j]);
  for (i64 lane = 0; lane < kWidthOf<V>; ++lane) best = std::max(best, top[lane]);
  return best;
}

template <class V>
HM_INLINE float dot(const float* a, const float* b, i64 count) {
  V lanes{};
  i64 j = 0;
  for (; j + kWidthOf<V> <= count; j += kWidthOf<V>)
    lanes += const_vector_at<V>(a + j) * const_vector_at<V>(b + j);
  float total = sum_of(lanes);
  for (; j < count; ++j) total += a[j] * b[j];
  return total;
}

/// x[j] = exp(x[j] - shift), at most 1, for j < count, 0 from there to `cols`; returns the sum. The row has
/// room for kKeys, whole vectors.
template <class V>
HM_INLINE float exp_row(float* x, i64 count, i64 cols, float shift) {
  V lanes{};
  i64 j = 0;
  for (; j < count; j += kWidthOf<V>) {
    V& part = vector_at<V>(x + j);
    part -= shift;
    exponentiate(part);
    for (i64 lane = count - j; lane < kWidthOf<V>; ++lane) x[j + lane] = 0;
    lanes += part;
  }
  for (; j < cols; ++j) x[j] = 0;
  return sum_of(lanes);
}

/// Rows of the block of queries that starts at `begin`, and keys that query r of it sees in the block of keys
/// that starts at `key_begin`.
struct Block {
  i64 begin, count, key_begin, keys;
  i64 offset() const { return begin - key_begin; }
  i64 seen(i64 r) const { return std::max<i64>(0, std::min(keys, offset() + r + 1)); }
  i64 cols() const { return (keys + 7) / 8 * 8; }
};

HM_INLINE Block make_block(i64 begin, i64 key_begin, i64 seq_len) {
  return {begin, std::min(kQueries, seq_len - begin), key_begin, std::min(kKeys, seq_len - key_begin)};
}

i64 padded_keys(const AttentionShape& s) { return (s.seq_len + kKeys - 1) / kKeys * kKeys; }

std::vector<float> buffer(i64 rows, i64 width) {
  return std::vector<float>(static_cast<std::size_t>(rows * width));
}

/// scores = rows * transposed of a block.
template <class V>
HM_INLINE void block_scores(const Block& block, const float* rows, i64 width, const float* transposed,
                            float* scores) {
  product<V>({block.count, block.cols(), width, rows, width, 1, transposed, kKeys, scores, kKeys, false},
             Mask::kColumns, block.offset());
}

/// Of one thread. Rows of one head, packed.
struct ForwardScratch {
  std::vector<float> room, q, keys, values, out, scores;
  explicit ForwardScratch(const AttentionShape& s)
      : room(buffer(s.seq_len, std::max(s.dim, s.v_dim))),
        q(buffer(kQueries, s.dim)),
        keys(buffer(padded_keys(s), s.dim)),
        values(buffer(s.seq_len, s.v_dim)),
        out(buffer(kQueries, s.v_dim)),
        scores(buffer(kQueries, kKeys)) {}
};

struct ForwardArgs {
  const AttentionShape& s;
  const HeadRows &q, &k, &v, &out;
  float* log_sums;
};

/// Of a block of queries: the maximum and the sum of exponentials of the scores so far.
struct Softmax {
  float top[kQueries], sum[kQueries];
};

/// Scores become weights; what a row of out holds already shrinks when the row's maximum grows.
template <class V>
HM_INLINE void softmax_step(const Block& block, i64 v_dim, float* scores, float* out, Softmax& softmax) {
  for (i64 r = 0; r < block.count; ++r) {
    float* row = scores + r * kKeys;
    const i64 seen = block.seen(r);
    const float of_block = largest<V>(row, seen);
    if (block.key_begin == 0) {
      softmax.top[r] = of_block;
      softmax.sum[r] = exp_row<V>(row, seen, block.cols(), of_block);
      continue;
    }
    const float before = softmax.top[r], top = std::max(before, of_block), shrink = fast_exp(before - top);
    softmax.top[r] = top;
    softmax.sum[r] = softmax.sum[r] * shrink + exp_row<V>(row, seen, block.cols(), top);
    if (top == before) continue;
    for (i64 c = 0; c < v_dim; ++c) out[r * v_dim + c] *= shrink;
  }
}

/// One head of one sequence.
template <class V>
HM_INLINE void forward_head(const ForwardArgs& args, i64 b, i64 h, ForwardScratch& scratch) {
  const AttentionShape& s = args.s;
  const i64 kv = h / (s.num_heads / s.num_kv_heads);
  float* room = scratch.room.data();
  pack_transposed(read_rows(args.k, b, 0, kv, s.seq_len, s.dim, room), s.seq_len, s.dim, scratch.keys.data());
  pack(read_rows(args.v, b, 0, kv, s.seq_len, s.v_dim, room), s.seq_len, s.v_dim, 1, scratch.values.data());
  float *out = scratch.out.data(), *scores = scratch.scores.data();
  Softmax softmax;
  for (i64 begin = 0; begin < s.seq_len; begin += kQueries) {
    const i64 count = std::min(kQueries, s.seq_len - begin);
    pack(read_rows(args.q, b, begin, h, count, s.dim, room), count, s.dim, s.scale, scratch.q.data());
    for (i64 key_begin = 0; key_begin < begin + count; key_begin += kKeys) {
      const Block block = make_block(begin, key_begin, s.seq_len);
      block_scores<V>(block, scratch.q.data(), s.dim, scratch.keys.data() + key_begin * s.dim, scores);
      softmax_step<V>(block, s.v_dim, scores, out, softmax);
      product<V>({count, s.v_dim, block.keys, scores, kKeys, 1, scratch.values.data() + key_begin * s.v_dim,
                  s.v_dim, out, s.v_dim, key_begin > 0},
                 Mask::kDepth, block.offset());
    }
    for (i64 r = 0; r < count; ++r) {
      write_rows(out + r * s.v_dim, 1, s.v_dim, 1 / softmax.sum[r], args.out, b, begin + r, h);
      args.log_sums[(b * s.num_heads + h) * s.seq_len + begin + r] =
          softmax.top[r] + std::log(softmax.sum[r]);
    }
  }
}

/// Of one thread. Rows of one head, packed; q is scaled.
struct BackwardScratch {
  std::vector<float> room, keys, keys_t, values_t, q, dout, dq, dk, dv, dots, scores, dscores;
  explicit BackwardScratch(const AttentionShape& s)
      : room(buffer(s.seq_len, std::max(s.dim, s.v_dim))),
        keys(buffer(s.seq_len, s.dim)),
        keys_t(buffer(padded_keys(s), s.dim)),
        values_t(buffer(padded_keys(s), s.v_dim)),
        q(buffer(s.seq_len, s.dim)),
        dout(buffer(s.seq_len, s.v_dim)),
        dq(buffer(s.seq_len, s.dim)),
        dk(buffer(s.seq_len, s.dim)),
        dv(buffer(s.seq_len, s.v_dim)),
        dots(buffer(s.seq_len, 1)),
        scores(buffer(kQueries, kKeys)),
        dscores(buffer(kQueries, kKeys)) {}
};

/// One block of queries against one block of keys.
template <class V>
HM_INLINE void backward_block(const AttentionShape& s, const Block& block, const float* log_sums,
                              BackwardScratch& scratch) {
  float *scores = scratch.scores.data(), *dscores = scratch.dscores.data();
  const float* q = scratch.q.data() + block.begin * s.dim;
  const float* dout = scratch.dout.data() + block.begin * s.v_dim;
  block_scores<V>(block, q, s.dim, scratch.keys_t.data() + block.key_begin * s.dim, scores);
  block_scores<V>(block, dout, s.v_dim, scratch.values_t.data() + block.key_begin * s.v_dim, dscores);
  for (i64 r = 0; r < block.count; ++r) {
    float *p = scores + r * kKeys, *d = dscores + r * kKeys;
    const i64 seen = block.seen(r);
    exp_row<V>(p, seen, block.cols(), log_sums[block.begin + r]);
    const float subtract = scratch.dots[static_cast<std::size_t>(block.begin + r)];
    for (i64 j = 0; j < seen; ++j) d[j] = p[j] * (d[j] - subtract);
    for (i64 j = seen; j < block.cols(); ++j) d[j] = 0;
  }
  product<V>({block.keys, s.v_dim, block.count, scores, 1, kKeys, dout, s.v_dim,
              scratch.dv.data() + block.key_begin * s.v_dim, s.v_dim, true},
             Mask::kDepthFrom, block.offset());
  product<V>({block.keys, s.dim, block.count, dscores, 1, kKeys, q, s.dim,
              scratch.dk.data() + block.key_begin * s.dim, s.dim, true},
             Mask::kDepthFrom, block.offset());
  product<V>(
      {block.count, s.dim, block.keys, dscores, kKeys, 1, scratch.keys.data() + block.key_begin * s.dim,
       s.dim, scratch.dq.data() + block.begin * s.dim, s.dim, block.key_begin > 0},
      Mask::kDepth, block.offset());
}

/// One query head: dq, and what it adds to dk and dv.
template <class V>
HM_INLINE void backward_head(const AttentionShape& s, const AttentionGradients& g, i64 b, i64 h,
                             BackwardScratch& scratch) {
  float* room = scratch.room.data();
  pack(read_rows(g.q, b, 0, h, s.seq_len, s.dim, room), s.seq_len, s.dim, s.scale, scratch.q.data());
  pack(read_rows(g.dout, b, 0, h, s.seq_len, s.v_dim, room), s.seq_len, s.v_dim, 1, scratch.dout.data());
  const FloatRows out = read_rows(g.out, b, 0, h, s.seq_len, s.v_dim, room);
  for (i64 t = 0; t < s.seq_len; ++t) {
    scratch.dots[static_cast<std::size_t>(t)] =
        dot<V>(scratch.dout.data() + t * s.v_dim, out.data + t * out.row, s.v_dim);
  }
  const float* log_sums = g.log_sums + (b * s.num_heads + h) * s.seq_len;
  for (i64 key_begin = 0; key_begin < s.seq_len; key_begin += kKeys) {
    for (i64 begin = key_begin; begin < s.seq_len; begin += kQueries)
      backward_block<V>(s, make_block(begin, key_begin, s.seq_len), log_sums, scratch);
  }
  write_rows(scratch.dq.data(), s.seq_len, s.dim, s.scale, g.dq, b, 0, h);
}

/// All query heads that share one head of keys and values, in one sequence: nobody else writes their
/// gradients.
template <class V>
HM_INLINE void backward_heads(const AttentionShape& s, const AttentionGradients& g, i64 b, i64 kv,
                              BackwardScratch& scratch) {
  float* room = scratch.room.data();
  const FloatRows keys = read_rows(g.k, b, 0, kv, s.seq_len, s.dim, room);
  pack(keys, s.seq_len, s.dim, 1, scratch.keys.data());
  pack_transposed(keys, s.seq_len, s.dim, scratch.keys_t.data());
  pack_transposed(read_rows(g.v, b, 0, kv, s.seq_len, s.v_dim, room), s.seq_len, s.v_dim,
                  scratch.values_t.data());
  std::fill(scratch.dk.begin(), scratch.dk.end(), 0.0f);
  std::fill(scratch.dv.begin(), scratch.dv.end(), 0.0f);
  const i64 group = s.num_heads / s.num_kv_heads;
  for (i64 h = kv * group; h < (kv + 1) * group; ++h) backward_head<V>(s, g, b, h, scratch);
  write_rows(scratch.dk.data(), s.seq_len, s.dim, 1, g.dk, b, 0, kv);
  write_rows(scratch.dv.data(), s.seq_len, s.v_dim, 1, g.dv, b, 0, kv);
}

// The same code once per instruction set: inlined into functions that may use it.

using ForwardHead = void(const ForwardArgs&, i64, i64, ForwardScratch&);
using BackwardHeads = void(const AttentionShape&, const AttentionGradients&, i64, i64, BackwardScratch&);

struct Kernels {
  ForwardHead* forward;
  BackwardHeads* backward;
};

void forward_plain(const ForwardArgs& args, i64 b, i64 h, ForwardScratch& scratch) {
  forward_head<Vector8>(args, b, h, scratch);
}
void backward_plain(const AttentionShape& s, const AttentionGradients& g, i64 b, i64 kv,
                    BackwardScratch& scratch) {
  backward_heads<Vector8>(s, g, b, kv, scratch);
}

#if defined(__x86_64__) && defined(__GNUC__)
[[gnu::target("avx2,fma")]] void forward_avx2(const ForwardArgs& args, i64 b, i64 h,
                                              ForwardScratch& scratch) {
  forward_head<Vector8>(args, b, h, scratch);
}
[[gnu::target("avx2,fma")]] void backward_avx2(const AttentionShape& s, const AttentionGradients& g, i64 b,
                                               i64 kv, BackwardScratch& scratch) {
  backward_heads<Vector8>(s, g, b, kv, scratch);
}
[[gnu::target("avx512f,avx512vl,avx512dq,avx2,fma")]] void forward_avx512(const ForwardArgs& args, i64 b,
                                                                          i64 h, ForwardScratch& scratch) {
  forward_head<Vector16>(args, b, h, scratch);
}
[[gnu::target("avx512f,avx512vl,avx512dq,avx2,fma")]] void backward_avx512(const AttentionShape& s,
                                                                           const AttentionGradients& g, i64 b,
                                                                           i64 kv, BackwardScratch& scratch) {
  backward_heads<Vector16>(s, g, b, kv, scratch);
}

Kernels choose_kernels() {
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl") &&
                      __builtin_cpu_supports("avx512dq");
  if (avx512) return {forward_avx512, backward_avx512};
  if (avx2) return {forward_avx2, backward_avx2};
  return {forward_plain, backward_plain};
}
#else
Kernels choose_kernels() { return {forward_plain, backward_plain}; }
#endif

const Kernels& attention_kernels() {
  static const Kernels chosen = choose_kernels();
  return chosen;
}

}  // namespace

bool fits_cpu_attention(const AttentionShape& shape) {
  return shape.dim % 8 == 0 && shape.v_dim % 8 == 0 && shape.num_heads % shape.num_kv_heads == 0;
}

void cpu_attention_forward(const AttentionShape& shape, const HeadRows& q, const HeadRows& k,
                           const HeadRows& v, const HeadRows& out, float* log_sums) {
  const ForwardArgs args{shape, q, k, v, out, log_sums};
  at::parallel_for(0, shape.num_sequences * shape.num_heads, 1, [&](i64 begin, i64 end) {
    ForwardScratch scratch(shape);
    for (i64 i = begin; i < end; ++i)
      attention_kernels().forward(args, i / shape.num_heads, i % shape.num_heads, scratch);
  });
}

void cpu_attention_backward(const AttentionShape& shape, const AttentionGradients& g) {
  at::parallel_for(0, shape.num_sequences * shape.num_kv_heads, 1, [&](i64 begin, i64 end) {
    BackwardScratch scratch(shape);
    for (i64 i = begin; i < end; ++i)
      attention_kernels().backward(shape, g, i / shape.num_kv_heads, i % shape.num_kv_heads, scratch);
  });
}

}  // namespace hetermoe
