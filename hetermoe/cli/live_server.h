#pragma once
#include <functional>

#include "hetermoe/report/live.h"

namespace hetermoe {

/// Serves the pages of a run on 127.0.0.1 until SIGINT or SIGTERM. port: 0 = any that is free. `began` is
/// told the port when it listens. Throws DeviceError when it cannot, and in a build without cpp-httplib.
void serve_live(LiveRun& run, int port, const std::function<void(int)>& began);

}  // namespace hetermoe
