#pragma once
#include <span>
#include <vector>

#include "hetermoe/routing/trace.h"

namespace hetermoe {

/// Copies and rows that change groups when sequences and experts each belong to a group.
struct Crossing {
  explicit Crossing(i64 num_groups);
  double copies = 0;         ///< whose expert is in another group than their sequence
  double rows = 0;           ///< a token once for each other group that has one of its experts
  std::vector<double> sent;  ///< [groups] copies of each group's sequences
  /// Copies of the group that sends most: what all send where exchanges are padded.
  double most() const;
};

/// Adds what crosses in one layer of a step (its position among the header's). groups: [sequences of the
/// step] and [experts]. The step has choices.
void add_crossing(Crossing& all, const TraceHeader& header, const TraceStep& step, std::size_t layer,
                  std::span<const i32> of_sequence, const std::vector<i32>& of_expert);

}  // namespace hetermoe
