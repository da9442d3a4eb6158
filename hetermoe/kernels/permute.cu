#include "hetermoe/kernels/permute.h"

#include "hetermoe/kernels/numbers.h"

namespace hetermoe::kernels {

/// Copies [begin, end) of this block's chunk.
HM_DEVICE i64 chunk_end(i64 chunk, i64 copies) { return smaller((block() + 1) * chunk, copies); }

template <class Key>
HM_DEVICE void count_keys(const CountKeys& a) {
  const i64 begin = block() * a.chunk, end = chunk_end(a.chunk, a.copies);
  i32* const keys = shared<i32>();
  for (i64 i = begin + thread(); i < end; i += num_threads()) {
    const i32 key = i32(static_cast<const Key*>(a.keys)[i]);
    keys[i - begin] = a.map != nullptr ? a.map[key] : key;
  }
  meet();
  for (i64 key = thread(); key < a.num_keys; key += num_threads()) {
    i32 count = 0;
    for (i64 i = begin; i < end; ++i) {
      if (keys[i - begin] == key) a.rank[i] = count++;
    }
    a.counts[block() * a.num_keys + key] = count;
  }
}

HM_DEVICE void scan_counts(const ScanCounts& a) {
  for (i64 key = thread(); key < a.num_keys; key += num_threads()) {
    i32 sum = 0;
    for (i64 chunk = 0; chunk < a.num_chunks; ++chunk) {
      i32& count = a.counts[chunk * a.num_keys + key];
      const i32 own = count;
      count = sum;
      sum += own;
    }
    a.totals[key] = sum;
  }
  meet();
  if (thread() != 0) return;
  i32 sum = 0;
  for (i64 key = 0; key < a.num_keys; ++key) {
    a.begin[key] = sum;
    sum += a.totals[key];
  }
  a.begin[a.num_keys] = sum;
}

/// How many positions of [0, count) lie at or before `end`; position p lies at p + 1/2.
HM_DEVICE i32 positions_before(double end, i32 count) {
  i32 p = end <= 0 ? 0 : end >= count ? count : i32(end);
  while (p > 0 && double(p - 1) + 0.5 > end) --p;
  while (p < count && double(p) + 0.5 <= end) ++p;
  return p;
}

HM_DEVICE void cut_shares(const CutShares& a) {
  for (i64 expert = thread(); expert < a.owners.num_experts; expert += num_threads()) {
    const i32 count = a.totals[expert];
    double end = 0;
    i32 first = 0;
    for (i32 o = a.owners.begin[expert]; o < a.owners.begin[expert + 1]; ++o) {
      const double part = plain_product(a.owners.share[o], double(count));
      end = o == a.owners.begin[expert] ? part : plain_sum(end, part);
      const bool last = o + 1 == a.owners.begin[expert + 1];
      const i32 next = last ? count : larger(first, positions_before(end, count));
      a.first[o] = first;
      a.bin_count[a.owners.bin[o]] = next - first;
      first = next;
    }
  }
  meet();
  if (thread() != 0) return;
  i32 sum = 0;
  for (i64 bin = 0; bin < a.owners.num_bins; ++bin) {
    a.bin_begin[bin] = sum;
    sum += a.bin_count[bin];
  }
  a.bin_begin[a.owners.num_bins] = sum;
  for (i64 d = 0; d <= a.owners.num_destinations; ++d) a.copy_begin[d] = a.bin_begin[a.bin_of_destination[d]];
}

template <class Key>
HM_DEVICE void split_copies(const SplitCopies& a) {
  const i64 begin = block() * a.chunk, end = chunk_end(a.chunk, a.copies);
  i32* const destinations = shared<i32>();
  for (i64 i = begin + thread(); i < end; i += num_threads()) {
    const i32 expert = i32(static_cast<const Key*>(a.topk)[i]);
    if (expert < 0) {  // no choice
      destinations[i - begin] = a.destination[i] = -1;
      continue;
    }
    const i32 position = a.before[block() * a.owners.num_experts + expert] + a.rank[i];
    i32 o = a.owners.begin[expert + 1] - 1;
    while (a.first[o] > position) --o;  // owners without a copy begin where the next one does
    const i32 place = a.bin_begin[a.owners.bin[o]] + position - a.first[o];
    destinations[i - begin] = a.owners.destination[o];
    a.destination[i] = a.owners.destination[o];
    a.place[i] = place;
    a.expert_out[place] = expert;
    a.flat_out[place] = i32(i);
  }
  meet();
  for (i64 d = thread(); d < a.owners.num_destinations; d += num_threads()) {
    i32 rows = 0;
    i64 last_token = -1;
    for (i64 i = begin; i < end; ++i) {
      if (destinations[i - begin] != d) continue;
      const i64 token = i / a.top_k;
      if (!a.dedup || token != last_token) ++rows;
      last_token = token;
      a.row[i] = rows - 1;
    }
    a.row_counts[block() * a.owners.num_destinations + d] = rows;
  }
}

HM_DEVICE void write_rows(const WriteRows& a) {
  const i64 begin = block() * a.chunk, end = chunk_end(a.chunk, a.copies);
  for (i64 i = begin + thread(); i < end; i += num_threads()) {
    const i32 destination = a.destination[i];
    if (destination < 0) continue;
    const i32 row = a.before[block() * a.num_destinations + destination] + a.row[i];
    a.row_out[a.place[i]] = row;
    bool first = true;
    for (i64 j = i / a.top_k * a.top_k; a.dedup && j < i; ++j)
      first = first && a.destination[j] != destination;
    if (first) a.token_out[a.row_begin[destination] + row] = i32(i / a.top_k);
  }
}

HM_DEVICE void group_copies(const GroupCopies& a) {
  const i64 begin = block() * a.chunk, end = chunk_end(a.chunk, a.copies);
  for (i64 i = begin + thread(); i < end; i += num_threads()) {
    const i32 slot = a.slot_of[a.expert[i]];
    i64 source = 0;
    while (source + 1 < a.num_sources && a.source_begin[source + 1] <= i) ++source;
    const i32 place = a.slot_begin[slot] + a.before[block() * a.num_slots + slot] + a.rank[i];
    a.row_out[place] = a.row_begin[source] + a.row[i];
    a.arrival_out[place] = i32(i);
  }
}

}  // namespace hetermoe::kernels
