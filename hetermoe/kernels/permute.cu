#include "hetermoe/kernels/permute.h"

#include "hetermoe/kernels/teams.h"

namespace hetermoe::kernels {

/// A chunk's copies [begin, begin + count), and memory that the threads of its block share.
struct Chunk {
  i64 begin;
  i32 count;
  i32* keys;   ///< [size] -1 = none
  i32* ranks;  ///< [size]
  i32* table;  ///< [warps, keys at once]

  HM_DEVICE Chunk(i64 size, i64 copies)
      : begin(block() * size),
        count(i32(larger(i64(0), smaller(size, copies - begin)))),
        keys(shared<i32>()),
        ranks(keys + size),
        table(ranks + size) {}
};

/// rank_keys() of the keys [first_key, first_key + num_keys).
template <class Counts>
HM_DEVICE void rank_some_keys(const Chunk& chunk, i32 first_key, i32 num_keys, const Counts& counts,
                              i32* totals) {
  const WarpTeam warp;
  const i32 num_warps = warp.per_block(), piece = (chunk.count + num_warps - 1) / num_warps;
  const i32 begin = warp.in_block() * piece, end = smaller(begin + piece, chunk.count);
  i32* const own = chunk.table + warp.in_block() * num_keys;
  for (i32 n = thread(); n < num_warps * num_keys; n += num_threads()) chunk.table[n] = 0;
  meet();
  for (i32 first = begin; first < end; first += warp.size()) {
    const i32 i = first + warp.rank(), key = i < end ? chunk.keys[i] - first_key : -1;
    const bool here = key >= 0 && key < num_keys;
    const Alike alike = warp.alike(here ? key : -1, here && counts(i));
    if (here) chunk.ranks[i] = own[key] + alike.before;
    warp.meet();
    if (here && alike.first) own[key] += alike.all;
    warp.meet();
  }
  meet();
  for (i32 key = thread(); key < num_keys; key += num_threads()) {
    i32 sum = 0;
    for (i32 w = 0; w < num_warps; ++w) {
      i32& count = chunk.table[w * num_keys + key];
      const i32 of_warp = count;
      count = sum;
      sum += of_warp;
    }
    totals[first_key + key] = sum;
  }
  meet();
  for (i32 i = begin + warp.rank(); i < end; i += warp.size()) {
    const i32 key = chunk.keys[i] - first_key;
    if (key >= 0 && key < num_keys) chunk.ranks[i] += own[key];
  }
  meet();
}

/// ranks[i] = how many copies before i have its key and count; totals[key] = how many copies of the chunk do.
template <class Counts>
HM_DEVICE void rank_keys(const Chunk& chunk, i64 num_keys, const Counts& counts, i32* totals) {
  for (i64 first = 0; first < num_keys; first += kKeysAtOnce)
    rank_some_keys(chunk, i32(first), i32(smaller(kKeysAtOnce, num_keys - first)), counts, totals);
}

/// begin[k] = the counts of the keys before k, for k in [0, num_keys]; by all threads of a block.
HM_DEVICE void add_up(const i32* counts, i64 num_keys, i32* begin) {
  const BlockTeam team;
  i32 before = 0;
  for (i64 first = 0; first < num_keys; first += num_threads()) {
    const i64 key = first + thread();
    i32 all = 0;
    const i32 sum = team.sum_before(key < num_keys ? counts[key] : 0, all);
    if (key < num_keys) begin[key] = before + sum;
    before += all;
  }
  if (thread() == 0) begin[num_keys] = before;
  meet();
}

/// The same in shared memory, and by one block in `out`.
HM_DEVICE const i32* begins_of_keys(const i32* totals, i64 num_keys, i32* out) {
  i32* const begin = shared<i32>();
  add_up(totals, num_keys, begin);
  for (i64 key = thread(); block() == 0 && key <= num_keys; key += num_threads()) out[key] = begin[key];
  return begin;
}

template <class Key>
HM_DEVICE void count_keys(const CountKeys& a) {
  const Chunk chunk(a.chunk, a.copies);
  for (i32 i = thread(); i < chunk.count; i += num_threads()) {
    const i32 key = i32(static_cast<const Key*>(a.keys)[chunk.begin + i]);
    chunk.keys[i] = key >= 0 && a.map != nullptr ? a.map[key] : key;
  }
  meet();
  rank_keys(
      chunk, a.num_keys, [](i32) { return true; }, a.counts + block() * a.num_keys);
  for (i32 i = thread(); i < chunk.count; i += num_threads()) {
    if (chunk.keys[i] >= 0) a.rank[chunk.begin + i] = chunk.ranks[i];
  }
}

/// Threads side by side have neighbouring keys; those above each other share a key's chunks.
HM_DEVICE void scan_counts(const ScanCounts& a) {
  const i32 columns = smaller(num_threads(), kScannedKeys), depth = num_threads() / columns;
  const i32 column = thread() % columns, part = thread() / columns;
  const i64 piece = (a.num_chunks + depth - 1) / depth, begin = part * piece,
            end = smaller(begin + piece, a.num_chunks);
  i32* const sums = shared<i32>();  // [depth, columns]
  for (i64 first = block() * columns; first < a.num_keys; first += num_blocks() * columns) {
    const i64 key = first + column;
    const bool works = part < depth && key < a.num_keys;
    i32 sum = 0;
    for (i64 chunk = begin; works && chunk < end; ++chunk) sum += a.counts[chunk * a.num_keys + key];
    if (works) sums[part * columns + column] = sum;
    meet();
    i32 before = 0;
    for (i32 other = 0; works && other < part; ++other) before += sums[other * columns + column];
    if (works && part == depth - 1) a.totals[key] = before + sum;
    for (i64 chunk = begin; works && chunk < end; ++chunk) {
      i32& count = a.counts[chunk * a.num_keys + key];
      const i32 own = count;
      count = before;
      before += own;
    }
    meet();
  }
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
  add_up(a.bin_count, a.owners.num_bins, a.bin_begin);
  for (i64 d = thread(); d <= a.owners.num_destinations; d += num_threads())
    a.copy_begin[d] = a.bin_begin[a.bin_of_destination[d]];
}

template <class Key>
HM_DEVICE void split_copies(const SplitCopies& a) {
  const Chunk chunk(a.chunk, a.copies);
  const i32* const before = a.before + block() * a.owners.num_experts;
  for (i32 n = thread(); n < chunk.count; n += num_threads()) {
    const i64 i = chunk.begin + n;
    const i32 expert = i32(static_cast<const Key*>(a.topk)[i]);
    if (expert < 0) {  // no choice
      chunk.keys[n] = a.destination[i] = -1;
      continue;
    }
    const i32 position = before[expert] + a.rank[i];
    i32 o = a.owners.begin[expert + 1] - 1;
    while (a.first[o] > position) --o;  // owners without a copy begin where the next one does
    const i32 place = a.bin_begin[a.owners.bin[o]] + position - a.first[o];
    chunk.keys[n] = a.destination[i] = a.owners.destination[o];
    a.place[i] = place;
    a.expert_out[place] = expert;
    a.flat_out[place] = i32(i);
  }
  meet();
  const i32 top_k = i32(a.top_k);
  const auto has_own_row = [&](i32 n) {  // else an earlier copy of the token goes to the same destination
    bool own = true;
    for (i32 other = n - n % top_k; a.dedup && other < n; ++other)
      own = own && chunk.keys[other] != chunk.keys[n];
    return own;
  };
  rank_keys(chunk, a.owners.num_destinations, has_own_row,
            a.row_counts + block() * a.owners.num_destinations);
  for (i32 n = thread(); n < chunk.count; n += num_threads()) {
    if (chunk.keys[n] >= 0) a.row[chunk.begin + n] = has_own_row(n) ? chunk.ranks[n] : -chunk.ranks[n];
  }
}

HM_DEVICE void write_rows(const WriteRows& a) {
  const i32* const row_begin = begins_of_keys(a.totals, a.num_destinations, a.row_begin);
  const i32* const before = a.before + block() * a.num_destinations;
  const i64 begin = block() * a.chunk, end = smaller(begin + a.chunk, a.copies);
  for (i64 i = begin + thread(); i < end; i += num_threads()) {
    const i32 destination = a.destination[i];
    if (destination < 0) continue;
    const bool first = a.row[i] >= 0;
    const i32 row = before[destination] + (first ? a.row[i] : -1 - a.row[i]);
    a.row_out[a.place[i]] = row;
    if (first) a.token_out[row_begin[destination] + row] = i32(u32(i) / u32(a.top_k));
  }
}

HM_DEVICE void group_copies(const GroupCopies& a) {
  const i32* const slot_begin = begins_of_keys(a.totals, a.num_slots, a.slot_begin);
  const i32* const before = a.before + block() * a.num_slots;
  const i64 begin = block() * a.chunk, end = smaller(begin + a.chunk, a.copies);
  i64 source = 0;
  for (i64 i = begin + thread(); i < end; i += num_threads()) {
    const i32 slot = a.slot_of[a.expert[i]];
    while (source + 1 < a.num_sources && a.source_begin[source + 1] <= i) ++source;
    const i32 place = slot_begin[slot] + before[slot] + a.rank[i];
    a.row_out[place] = a.row_begin[source] + a.row[i];
    a.arrival_out[place] = i32(i);
  }
}

}  // namespace hetermoe::kernels
