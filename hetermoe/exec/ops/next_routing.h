#pragma once
#include "hetermoe/exec/ops/op_functions.h"

// With CombineTo::kNext results of experts go to the devices of the next layer. These devices have to know
// which rows come back for which of their tokens, and how many rows each device gets. Sources find both from
// their routing and send it along with the residual stream.
namespace hetermoe {

/// At a source: the owners of its tokens' choices and the counts of its segments, from its routing.
void tell_next(OpContext& d, const Op& attention, LayerSlot& slot);

/// How many numbers a source of a layer tells of its segments in each chunk; 0 where results go back to it.
i64 num_next_counts(const OpContext& d, const Op& op, i32 layer, std::size_t source);

/// Adds what a source tells of a segment: [owners] its rows from each.
void add_segment(ExchangeLoad& load, const NextSegment& segment, const i32* rows_O);

/// At a receiver of a move: which rows come from which owner, by slot.owner_TK of its own tokens.
void take_next(OpContext& d, const Op& move, LayerSlot& slot);

/// Counts of all sources, each int32 [chunks, segments, owners]: who returns how many rows to whom, in every
/// chunk.
void take_next_counts(OpContext& d, const Op& move, LayerSlot& slot, const std::vector<at::Tensor>& told);

}  // namespace hetermoe
