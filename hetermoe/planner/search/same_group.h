#pragma once
#include <vector>

#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// The same group on other devices. counterpart: [device] that takes its place.
Group with_devices(const Group& group, const std::vector<DeviceId>& counterpart);

}  // namespace hetermoe
