#pragma once
#include <algorithm>

#include "hetermoe/schedule/schedule.h"

namespace hetermoe {

inline i64 count(const Schedule& schedule, OpKind kind) {
  return std::count_if(schedule.ops.begin(), schedule.ops.end(),
                       [&](const Op& op) { return op.kind == kind; });
}

}  // namespace hetermoe
