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

template <int N, class Source, class Number>
HM_DEVICE void add_pack(Number (&sum)[N], const Pack<N, Source>& pack) {
  Wide<Source> x[N];
  widen_pack<N, Source>(x, pack);
  for (int j = 0; j < N; ++j) sum[j] += x[j];
}

/// Rows of which many are read before the first is added: a token that is everywhere in a text has thousands,
/// and who waits for each of them waits long. The order of the additions stays.
constexpr i32 kRowsAhead = 8;

/// Adds columns of the rows item[0], item[1], ..., count of them; kRowsAhead if `kAll`, else fewer.
template <bool kAll, int N, class Source, class Item, class Number>
HM_DEVICE void add_rows(Number (&sum)[N], const Source* columns, i64 width, const Item* item, i32 count) {
  Pack<N, Source> ahead[kRowsAhead] = {};
  for (i32 j = 0; j < kRowsAhead; ++j) {
    if (kAll || j < count) ahead[j] = read_pack<N>(columns + i64(item[j]) * width);
  }
  for (i32 j = 0; j < kRowsAhead; ++j) {
    if (kAll || j < count) add_pack<N, Source>(sum, ahead[j]);
  }
}

template <int N, class Source, class Out, class Item>
HM_DEVICE void sum_row(const SumRows& a, i64 r) {
  const auto* const item = static_cast<const Item*>(a.item);
  const auto* const source = static_cast<const Source*>(a.source);
  const i32 begin = a.begin[r], end = a.begin[r + 1];
  if (begin == end && a.base == a.out) return;
  for (i64 c = i64(thread()) * N; c < a.width; c += i64(num_threads()) * N) {
    Wide<Out> sum[N] = {};
    if (a.base != nullptr) load_many<N>(sum, static_cast<const Out*>(a.base) + r * a.width + c);
    i32 i = begin;
    for (; i + kRowsAhead <= end; i += kRowsAhead)
      add_rows<true, N>(sum, source + c, a.width, item + i, kRowsAhead);
    if (i < end) add_rows<false, N>(sum, source + c, a.width, item + i, end - i);
    store_many<N>(static_cast<Out*>(a.out) + r * a.width + c, sum);
  }
}

template <class Source, class Out, class Item>
HM_DEVICE void sum_rows(const SumRows& a) {
  for (i64 r = block(); r < a.rows; r += num_blocks()) {
    if (a.packed)
      sum_row<kPack<Source>, Source, Out, Item>(a, r);
    else
      sum_row<1, Source, Out, Item>(a, r);
  }
}

template <int N, class Element>
HM_DEVICE void merge_row(const MergeRows& a, i64 t) {
  for (i64 c = i64(thread()) * N; c < a.width; c += i64(num_threads()) * N) {
    Wide<Element> sum[N] = {};
    if (a.base != nullptr) load<N>(sum, static_cast<const Element*>(a.base) + t * a.width + c);
    for (i32 p = 0; p < a.num_parts; ++p) {
      const MergeRows::Part& part = a.parts[p];
      for (i64 row = part.begin[t]; row < part.begin[t + 1]; ++row)
        add_pack<N, Element>(sum, read_pack<N>(static_cast<const Element*>(part.source) + row * a.width + c));
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

template <class Key>
HM_DEVICE void segment_begins(const SegmentBegins& a) {
  const auto* const keys = static_cast<const Key*>(a.keys);
  const i64 stride = num_blocks() * num_threads();
  for (i64 k = block() * num_threads() + thread(); k <= a.num_keys; k += stride) {
    i64 low = 0, high = a.count;
    while (low < high) {
      const i64 middle = (low + high) / 2;
      if (keys[middle] < k)
        low = middle + 1;
      else
        high = middle;
    }
    a.begin[k] = i32(low);
  }
}

}  // namespace hetermoe::kernels
