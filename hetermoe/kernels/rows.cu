#include "hetermoe/kernels/rows.h"

#include "hetermoe/kernels/teams.h"

namespace hetermoe::kernels {

template <class Unit>
HM_DEVICE void copy_row(const void* from, void* to, i64 units) {
  for (i64 i = thread(); i < units; i += num_threads())
    static_cast<Unit*>(to)[i] = static_cast<const Unit*>(from)[i];
}

template <class Index>
HM_DEVICE void gather_rows(const GatherRows& a) {
  const auto* const index = static_cast<const Index*>(a.index);
  const i64 bytes = a.width * a.unit;
  for (i64 r = block(); r < a.rows; r += num_blocks()) {
    const void* const from = static_cast<const char*>(a.source) + i64(index[r]) * bytes;
    void* const to = static_cast<char*>(a.out) + r * bytes;
    if (a.unit == 16)
      copy_row<Bytes16>(from, to, a.width);
    else if (a.unit == 4)
      copy_row<u32>(from, to, a.width);
    else
      copy_row<char>(from, to, a.width);
  }
}

template <int N, class Element>
HM_DEVICE void add_row(Wide<Element> (&sum)[N], const Element* row) {
  Wide<Element> x[N];
  load<N>(x, row);
  for (int j = 0; j < N; ++j) sum[j] += x[j];
}

template <int N, class Element, class Index>
HM_DEVICE void sum_row(const SumRows& a, i64 r) {
  const auto* const source = static_cast<const Element*>(a.source);
  const auto* const base = static_cast<const Element*>(a.base);
  const auto* const item = static_cast<const Index*>(a.item);
  const auto* const begin = static_cast<const Index*>(a.begin);
  for (i64 c = i64(thread()) * N; c < a.width; c += i64(num_threads()) * N) {
    Wide<Element> sum[N] = {};
    if (base != nullptr) load<N>(sum, base + r * a.width + c);
    for (i64 i = begin[r]; i < begin[r + 1]; ++i)
      add_row<N>(sum, source + (item != nullptr ? i64(item[i]) : i) * a.width + c);
    store<N>(static_cast<Element*>(a.out) + r * a.width + c, sum);
  }
}

template <class Element>
HM_DEVICE void sum_rows(const SumRows& a) {
  for (i64 r = block(); r < a.rows; r += num_blocks()) {
    if (a.packed)
      sum_row<kPack<Element>, Element, i32>(a, r);
    else
      sum_row<1, Element, i32>(a, r);
  }
}

template <int N, class Element>
HM_DEVICE void merge_row(const MergeRows& a, i64 t) {
  for (i64 c = i64(thread()) * N; c < a.width; c += i64(num_threads()) * N) {
    Wide<Element> sum[N];
    load<N>(sum, static_cast<const Element*>(a.base) + t * a.width + c);
    for (i32 p = 0; p < a.num_parts; ++p) {
      const i64 row = a.parts[p].row[t];
      if (row >= 0) add_row<N>(sum, static_cast<const Element*>(a.parts[p].source) + row * a.width + c);
    }
    store<N>(static_cast<Element*>(a.out) + t * a.width + c, sum);
  }
}

template <class Element>
HM_DEVICE void merge_rows(const MergeRows& a) {
  for (i64 t = block(); t < a.rows; t += num_blocks()) {
    if (a.packed)
      merge_row<kPack<Element>, Element>(a, t);
    else
      merge_row<1, Element>(a, t);
  }
}

template <class Index>
HM_DEVICE void invert_rows(const InvertRows& a) {
  const auto* const token = static_cast<const Index*>(a.token);
  const i64 stride = num_blocks() * num_threads();
  for (i64 r = block() * num_threads() + thread(); r < a.rows; r += stride) a.row[token[r]] = i32(r);
}

}  // namespace hetermoe::kernels
