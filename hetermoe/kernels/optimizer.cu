#include "hetermoe/kernels/optimizer.h"

#include "hetermoe/kernels/teams.h"

namespace hetermoe::kernels {

/// The tensor that block b works on: the last one that begins at or before it.
template <class Tensor>
HM_DEVICE i32 tensor_of_block(const Tensor* tensors, i32 num_tensors, i64 b) {
  i32 low = 0, high = num_tensors;
  while (high - low > 1) {
    const i32 middle = (low + high) / 2;
    if (tensors[middle].first_block <= b)
      low = middle;
    else
      high = middle;
  }
  return low;
}

/// Constants of an update in the precision of the values.
template <class Number>
struct AdamwNumbers {
  Number beta1, beta2, eps, decay, step_size, root_factor, grad_factor;

  HM_DEVICE explicit AdamwNumbers(const Adamw& a, bool decays)
      : beta1(Number(a.beta1)),
        beta2(Number(a.beta2)),
        eps(Number(a.eps)),
        decay(decays ? Number(a.decay) : Number(1)),
        step_size(Number(a.step_size)),
        root_factor(Number(a.root_factor)),
        grad_factor(Number(a.grad_factor)) {}

  HM_DEVICE void update(Number& value, Number grad, Number& exp_avg, Number& exp_avg_sq) const {
    grad *= grad_factor;
    exp_avg += (Number(1) - beta1) * (grad - exp_avg);
    exp_avg_sq = beta2 * exp_avg_sq + (Number(1) - beta2) * grad * grad;
    value = decay * value - step_size * exp_avg * reciprocal(root(exp_avg_sq) * root_factor + eps);
  }
};

/// A neighbour of x in bf16, that above or that below by the draw's lowest 16 bits: round_stochastically() of
/// nn. Infinite numbers and NaN stay.
HM_DEVICE float rounded_by(float x, u64 draw) {
  constexpr u32 kExponent = 0x7f800000;
  const u32 bits = bits_of(x);
  return (bits & kExponent) == kExponent ? x : float_of((bits + (u32(draw) & 0xffff)) & 0xffff0000);
}

/// Stores wide numbers as they are, and 16-bit ones rounded by the draws of counter, counter + 1, ...
template <int N, class Element>
HM_DEVICE void store_kept(Element* to, Wide<Element> (&values)[N], u64 counter) {
  if constexpr (sizeof(Element) == 2) {
    for (int j = 0; j < N; ++j) values[j] = rounded_by(values[j], splitmix64(counter + u64(j)));
  }
  store_many<N>(to, values);
}

template <int N, class Value, class Grad, class Moment, class Copy>
HM_DEVICE void update_chunk(const Adamw::Tensor& t, const AdamwNumbers<Wide<Value>>& numbers, i64 begin,
                            i64 end) {
  using Number = Wide<Value>;
  auto* const value = static_cast<Value*>(t.value);
  auto* const exp_avg = static_cast<Moment*>(t.exp_avg);
  auto* const exp_avg_sq = static_cast<Moment*>(t.exp_avg_sq);
  const auto* const grad = static_cast<const Grad*>(t.grad);
  const u64 of_value = t.key + u64(t.first), of_mean = splitmix64(t.key + 1) + u64(t.first),
            of_square = splitmix64(t.key + 2) + u64(t.first);
  for (i64 i = begin + i64(thread()) * N; i < end; i += i64(num_threads()) * N) {
    Number v[N], m[N], s[N];
    Wide<Grad> g[N];
    load_many<N>(v, value + i);
    load_many<N>(m, exp_avg + i);
    load_many<N>(s, exp_avg_sq + i);
    load_many<N>(g, grad + i);
    for (int j = 0; j < N; ++j) numbers.update(v[j], Number(g[j]), m[j], s[j]);
    store_kept<N>(value + i, v, of_value + u64(i));
    store_kept<N>(exp_avg + i, m, of_mean + u64(i));
    store_kept<N>(exp_avg_sq + i, s, of_square + u64(i));
    if (t.copy != nullptr) {
      Wide<Copy> c[N];
      for (int j = 0; j < N; ++j) c[j] = Wide<Copy>(v[j]);
      store_many<N>(static_cast<Copy*>(t.copy) + i, c);
    }
  }
}

template <class Value, class Grad, class Moment, class Copy>
HM_DEVICE void adamw(const Adamw& a) {
  constexpr int kMany = sizeof(Value) == 8 ? 2 : 8;  // what finds room in registers
  for (i64 b = block(); b < a.num_blocks; b += num_blocks()) {
    const Adamw::Tensor& t = a.tensors[tensor_of_block(a.tensors, a.num_tensors, b)];
    const AdamwNumbers<Wide<Value>> numbers(a, t.decays != 0);
    const i64 begin = (b - t.first_block) * kUpdateChunk, end = smaller(begin + kUpdateChunk, t.count);
    const auto address = reinterpret_cast<u64>(t.value) | reinterpret_cast<u64>(t.grad) |
                         reinterpret_cast<u64>(t.exp_avg) | reinterpret_cast<u64>(t.exp_avg_sq) |
                         reinterpret_cast<u64>(t.copy);
    const i64 whole = address % 16 == 0 ? begin + (end - begin) / kMany * kMany : begin;
    update_chunk<kMany, Value, Grad, Moment, Copy>(t, numbers, begin, whole);
    update_chunk<1, Value, Grad, Moment, Copy>(t, numbers, whole, end);
  }
}

template <int N, class Element>
HM_DEVICE double sum_of_squares(const Element* values, i64 begin, i64 end) {
  double sum = 0;
  for (i64 i = begin + i64(thread()) * N; i < end; i += i64(num_threads()) * N) {
    Wide<Element> x[N];
    load<N>(x, values + i);
    for (int j = 0; j < N; ++j) sum += double(x[j]) * double(x[j]);
  }
  return sum;
}

template <class Element>
HM_DEVICE void square_sum(const SquareSum& a) {
  const BlockTeam team;
  const SquareSum::Tensor& t = a.tensors[tensor_of_block(a.tensors, a.num_tensors, block())];
  const auto* const values = static_cast<const Element*>(t.values);
  const i64 begin = (block() - t.first_block) * kNormChunk, end = smaller(begin + kNormChunk, t.count);
  const i64 whole = t.packed ? begin + (end - begin) / kPack<Element> * kPack<Element> : begin;
  const double sum =
      team.sum(sum_of_squares<kPack<Element>>(values, begin, whole) + sum_of_squares<1>(values, whole, end));
  if (team.rank() == 0) a.partial[block()] = sum;
}

template <class Word>
HM_DEVICE void clear_words(void* data, i64 begin, i64 end) {
  Word* const words = static_cast<Word*>(data);
  for (i64 i = begin + thread(); i < end; i += num_threads()) words[i] = 0;
}

HM_DEVICE void clear(const Clear& a) {
  const Clear::Tensor& t = a.tensors[tensor_of_block(a.tensors, a.num_tensors, block())];
  constexpr i64 kWord = sizeof(i64);
  const i64 begin = (block() - t.first_block) * kClearChunk, end = smaller(begin + kClearChunk, t.bytes);
  const i64 whole = reinterpret_cast<u64>(t.data) % kWord == 0 ? end / kWord * kWord : begin;
  clear_words<i64>(t.data, begin / kWord, whole / kWord);
  clear_words<char>(t.data, whole, end);
}

HM_DEVICE void sum_up(const SumUp& a) {
  const BlockTeam team;
  double sum = 0;
  for (i64 i = thread(); i < a.count; i += num_threads()) sum += a.partial[i];
  sum = team.sum(sum);
  if (team.rank() == 0) *a.sum = sum;
}

}  // namespace hetermoe::kernels
