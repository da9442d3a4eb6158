#pragma once
#include <vector>

#include "hetermoe/planner/search/blocks.h"

namespace hetermoe {

struct RankedSketch {
  Sketch sketch;
  ClassSet classes;  ///< in use
  Estimate estimate;
};

/// Which classes may take part: every set of a few; of many, one of them, the first few, or all but one, and
/// likewise all classes of some types.
std::vector<ClassSet> class_sets(const Rates& rates);
std::vector<ClassSet> class_sets(const std::vector<i32>& types);  ///< [class]

struct SketchRanking {
  std::vector<RankedSketch> sketches;  ///< fastest estimate first; those without enough memory left out
  std::optional<Shortage> shortage;    ///< of these the one that lacks least
  /// [class] likewise of those with devices of any other class
  std::vector<std::optional<Shortage>> shortage_besides;
  i64 most_groups = 0;  ///< more groups would have been tried but for this bound; 0 = it did not bind
};

/// All sketches worth a look. They vary in the devices of each class that take part, in number and shape of
/// groups, and in the devices with attention, which may hold experts too. They also vary in microbatches, in
/// all and in flight, and in recomputation.
SketchRanking rank_sketches(const Rates& rates);

}  // namespace hetermoe
