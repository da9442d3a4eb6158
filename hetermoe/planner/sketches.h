#pragma once
#include <vector>

#include "hetermoe/planner/estimate.h"

namespace hetermoe {

/// Numbers of device classes, ascending.
using ClassSet = std::vector<std::size_t>;

struct RankedSketch {
  Sketch sketch;
  ClassSet classes;  ///< in use
  Estimate estimate;
};

/// Which classes may take part: every set of a few; of many, one of them, the first few, or all but one.
std::vector<ClassSet> class_sets(std::size_t num_classes);

/// All sketches worth a look: which classes take part, how many groups, which devices compute attention,
/// whether they hold experts too, how many microbatches and how many of them in flight, recomputation.
/// Fastest estimate first, those without enough memory left out; their nearest miss is left in `shortage`.
std::vector<RankedSketch> rank_sketches(const Rates& rates, std::optional<Shortage>& shortage);

/// Microbatch counts for so many sequences: divisors first choice, at most `limit`.
std::vector<i64> microbatch_choices(i64 sequences, i64 limit);

}  // namespace hetermoe
