#pragma once
#include <string>

#include "hetermoe/base/fields.h"

namespace hetermoe {

/// A plan that takes over in mid-run, as a job names it.
struct PlanChange {
  i64 step = 0;      ///< the first that it computes; 1 = the first of the run
  std::string plan;  ///< a plan file
  template <class V>
  void fields(V& v) {
    v("step", step, "first step that the plan computes", required(at_least(2)));
    v("plan", plan, "a plan.json", required());
  }
};

}  // namespace hetermoe
