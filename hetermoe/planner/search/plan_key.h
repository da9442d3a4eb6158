#pragma once
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Equal for plans whose steps take equally long on one cluster: a hash of order and placement. Who made a
/// plan, dtypes and the explicit order are not in it.
u64 key_of(const Plan& plan);

}  // namespace hetermoe
