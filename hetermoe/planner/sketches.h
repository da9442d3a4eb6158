#pragma once
#include <vector>

#include "hetermoe/planner/sketch.h"

namespace hetermoe {

/// A sketch with what it was made from; `classes` is a bit per class in use.
struct Weighed {
  Sketch sketch;
  unsigned classes = 0;
  Estimate estimate;
};

/// All sketches worth weighing: which classes take part, how many groups, which devices compute attention,
/// whether they hold experts too, how many microbatches and how many of them in flight, recomputation.
/// Fastest estimate first, those without enough memory left out; their nearest miss is left in `shortage`.
std::vector<Weighed> weigh_sketches(const Rates& rates, std::optional<Shortage>& shortage);

/// Microbatch counts for so many sequences: divisors first choice, at most `limit`.
std::vector<i64> microbatch_choices(i64 sequences, i64 limit);

}  // namespace hetermoe
