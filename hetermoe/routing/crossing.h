#pragma once
#include <vector>

#include "hetermoe/routing/trace.h"

namespace hetermoe {

/// What changes groups when sequences and experts each belong to one.
struct Crossing {
  double copies = 0;  ///< whose expert is in another group than their sequence
  double rows = 0;    ///< a token once for each other group that has one of its experts
  double most = 0;    ///< copies of the group that sends most: what all send where exchanges are padded
};

/// In one layer (its position among the header's). groups: [sequences] and [experts]. The trace has choices.
Crossing crossing(const TraceHeader& header, const TraceStep& step, std::size_t layer,
                  const std::vector<i32>& of_sequence, const std::vector<i32>& of_expert, i64 num_groups);

}  // namespace hetermoe
