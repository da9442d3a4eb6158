#pragma once
#include <ATen/ATen.h>

#include <span>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/routing/copy_split.h"

// Index work between router and experts: which row goes where, and which expert uses it. These tensors are
// int64 and on the CPU; nn/device_routing.h makes the same as int32 on a device. A row is one hidden vector
// in a message; a copy is one (token, expert) choice.
namespace hetermoe {

enum class RowDedup { kOff, kOn };  ///< kOn: a token whose experts share a destination is sent once

/// The experts that each destination has a share of: destination by destination, each in order of experts.
struct OwnerBins {
  std::vector<i64> begin;         ///< [destinations + 1] bins of destination d: [begin[d], begin[d + 1])
  std::vector<ExpertId> experts;  ///< [bins]
};
OwnerBins bins_of(const OwnerTable& owners, i64 num_destinations);

/// Rows and copies that one source sends to one destination.
struct SendIndex {
  at::Tensor token_R;  ///< source token of each row, ascending (repeated without dedup)
  // Copies in order of (expert, row):
  at::Tensor row_C;     ///< row in this message
  at::Tensor expert_C;  ///< expert id
  at::Tensor flat_C;    ///< t * K + k: position in the source's weights_TK
  i64 num_rows() const { return token_R.size(0); }
  i64 num_copies() const { return row_C.size(0); }
};

/// Splits the choices topk_TK over the destinations; the result has one entry per destination, maybe empty.
/// The copies of a replicated expert are split by position in proportion to the shares. A choice of -1 is
/// none.
std::vector<SendIndex> split_by_owner(const at::Tensor& topk_TK, const OwnerTable& owners,
                                      i64 num_destinations, RowDedup dedup);

/// Where the rows for each destination begin, and where the copies of each bin do: int32 [destinations + 1 +
/// bins + 1] on the CPU.
at::Tensor begins_of(const std::vector<SendIndex>& send, const OwnerBins& bins);

/// Numbers below 2^31 as int32 on the CPU.
at::Tensor int32_tensor(std::span<const i64> values);

/// The index part of a message as its receiver sees it.
struct ReceivedIndex {
  i64 num_rows = 0;
  at::Tensor row_C, expert_C;
};

/// Copies of all sources grouped by local slot, in order of (slot, source, row). Rows are numbered through
/// the concatenation of the messages in source order.
struct CopyGroups {
  at::Tensor row_C;                ///< row of each copy
  at::Tensor arrival_C;            ///< position of each copy in the concatenation of the sources' copies
  std::vector<i64> offsets;        ///< [slots + 1] copies of slot s: [offsets[s], offsets[s+1])
  std::vector<i64> source_copies;  ///< [sources] number of copies of each
  i64 num_rows = 0;
  // On a device with kernels of our own also:
  at::Tensor ends;                       ///< int32 [slots] offsets but the first
  at::Tensor by_row_C, begin_of_row_R1;  ///< the copies of row 0, then those of row 1, ...; where each begin
  i64 num_copies() const { return offsets.empty() ? 0 : offsets.back(); }
};

/// slot_of: [E] slot of each expert here; every received expert must have one.
CopyGroups group_copies(const std::vector<ReceivedIndex>& sources, const std::vector<i64>& slot_of,
                        i64 num_slots);

/// Those of slots [first, first + count), which have the numbers 0, 1, ... there. Rows keep theirs.
CopyGroups groups_of_slots(const CopyGroups& groups, i64 first, i64 count);

/// Values in arrival order (concatenated weights) into grouped order, and the way back (gradients of the
/// weights).
at::Tensor to_grouped(const CopyGroups& groups, const at::Tensor& arrival_values_C);
at::Tensor to_arrival(const CopyGroups& groups, const at::Tensor& grouped_values_C);

}  // namespace hetermoe
