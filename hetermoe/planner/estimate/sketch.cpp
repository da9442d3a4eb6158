#include "hetermoe/planner/estimate/sketch.h"

namespace hetermoe {

bool alike(const SketchGroup& a, const SketchGroup& b) {
  return a.count == b.count && a.attention == b.attention && a.by_speed == b.by_speed && a.mixed == b.mixed &&
         a.sequences == b.sequences && a.microbatches == b.microbatches;
}

}  // namespace hetermoe
