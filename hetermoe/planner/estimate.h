#pragma once
#include "hetermoe/planner/continuous_split.h"

namespace hetermoe {

/// What a sketch is worth, in closed form. It ranks sketches; only the simulator judges.
struct Estimate {
  Seconds step = 0;
  std::optional<Shortage> shortage;  ///< of memory; without one the figure holds

  bool feasible() const { return !shortage; }
};
Estimate estimate(const Rates& rates, const Sketch& sketch);

}  // namespace hetermoe
