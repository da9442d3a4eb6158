#pragma once
#include "hetermoe/planner/estimate/continuous_split.h"

namespace hetermoe {

/// Step time and memory of a sketch, in closed form. It ranks sketches; only the simulator judges.
struct Estimate {
  Seconds step = 0;
  std::optional<Shortage> shortage;  ///< of memory; without one the figure holds

  bool feasible() const { return !shortage; }
};
Estimate estimate(const Rates& rates, const Sketch& sketch);

/// One group on its own.
struct GroupTime {
  Seconds step = 0;   ///< without reduction of gradients and optimizer
  Seconds hides = 0;  ///< of the reduction: while the ports rest in the last backward pass
};
/// The order is that of the sketch, whose groups are not looked at: there are `groups`, all like this one.
/// Sets `shortage` and returns nothing of use when the group does not fit.
GroupTime estimate_group(const Rates& rates, const Sketch& sketch, const SketchGroup& group,
                         std::size_t groups, std::optional<Shortage>& shortage);

}  // namespace hetermoe
