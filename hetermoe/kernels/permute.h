#pragma once
#include "hetermoe/kernels/language.h"

// Stable counting sorts of copies, where a copy is one (token, expert) choice. Copies are cut into chunks of
// consecutive ones, one block each. The warps of a block have pieces of the chunk, whose keys each counts in
// a table of its own; then the tables are added up in order. So there are no atomics, and the order is that
// of a loop over the copies. Indices are int32.
namespace hetermoe::kernels {

/// Keys whose tables find room in shared memory at once; more are counted in several passes.
inline constexpr i64 kKeysAtOnce = 1024;
/// Bytes that threads of a block share in count_keys and split_copies.
HM_DEVICE constexpr i64 bytes_for_ranks(i64 chunk, i64 num_keys, i64 warps) {
  return (2 * chunk + warps * (num_keys < kKeysAtOnce ? num_keys : kKeysAtOnce)) * i64(sizeof(i32));
}

/// rank[i] = how many earlier copies of the chunk have the key of copy i; counts[chunk, key] = how many have
/// it. Copies with negative keys have no rank.
struct CountKeys {
  const void* keys;  ///< [copies]
  const i32* map;    ///< [number of different keys]: key k counts as map[k]; null: as k
  i32* rank;         ///< [copies]
  i32* counts;       ///< [chunks, num_keys]
  i64 copies, chunk, num_keys;
};

/// counts[chunk, key] become those of all chunks before; totals[key] = those of all. A block has
/// kScannedKeys neighbouring keys.
struct ScanCounts {
  i32* counts;
  i32* totals;  ///< [num_keys]
  i64 num_chunks, num_keys;
};
inline constexpr i32 kScannedKeys = 32;

/// The owners of all experts, expert after expert: owner o has a share of its expert's copies and belongs to
/// the bin of (destination, expert), where bins are numbered by destination, then by expert.
struct Owners {
  const i32* begin;        ///< [experts + 1] owners of expert e: [begin[e], begin[e + 1])
  const double* share;     ///< [owners]
  const i32* destination;  ///< [owners]
  const i32* bin;          ///< [owners]
  i64 num_experts, num_bins, num_destinations;
};

/// By one block. The copies of a replicated expert are split by position: the first one of owner o is
/// first[o].
struct CutShares {
  Owners owners;
  const i32* totals;              ///< [experts]
  const i32* bin_of_destination;  ///< [destinations + 1] the first bin of each
  i32* first;                     ///< [owners]
  i32* bin_count;                 ///< [bins], room to work
  i32* bin_begin;                 ///< [bins + 1]
  i32* copy_begin;                ///< [destinations + 1]
};

/// Places each copy in its bin; the chunks are those of CountKeys, whole tokens. row[i] becomes the row r of
/// copy i among those of its chunk and destination, or -1 - r if an earlier copy has this row, too;
/// row_counts[chunk, destination] their number.
struct SplitCopies {
  Owners owners;
  const void* topk;  ///< [copies] experts
  const i32* rank;
  const i32* before;  ///< [chunks, experts]
  const i32* first;
  const i32* bin_begin;
  i32* destination;  ///< [copies]
  i32* place;        ///< [copies]
  i32* row;          ///< [copies]
  i32* row_counts;   ///< [chunks, destinations]
  i32* expert_out;   ///< [copies] at place
  i32* flat_out;     ///< [copies] at place
  i64 copies, chunk, top_k;
  i32 dedup;
};

/// Rows of messages from rows of chunks: row_out[place] and, at the first copy of a row, its token. Shared
/// memory: destinations + 1 numbers. There is a block also where there are no copies.
struct WriteRows {
  const i32* destination;
  const i32* place;
  const i32* row;
  const i32* before;  ///< [chunks, destinations] rows of earlier chunks
  const i32* totals;  ///< [destinations] rows
  i32* row_begin;     ///< [destinations + 1] rows of the destinations before each
  i32* row_out;       ///< [copies] at place
  i32* token_out;     ///< [rows] message after message
  i64 copies, chunk, top_k, num_destinations;
};

/// Received copies by slot: place = slot's begin + those before it. Shared memory: slots + 1 numbers. There
/// is a block also where there are no copies.
struct GroupCopies {
  const i32* expert;        ///< [copies] source after source
  const i32* row;           ///< [copies] row in the source's message
  const i32* slot_of;       ///< [experts]
  const i32* source_begin;  ///< [sources + 1] copies of each source
  const i32* row_begin;     ///< [sources] rows of the sources before
  const i32* rank;
  const i32* before;  ///< [chunks, slots]
  const i32* totals;  ///< [slots] copies
  i32* slot_begin;    ///< [slots + 1] copies of the slots before each
  i32* row_out;       ///< [copies] row of each copy, in order of slots
  i32* arrival_out;   ///< [copies] where it arrived
  i64 copies, chunk, num_sources, num_slots;
};

}  // namespace hetermoe::kernels
