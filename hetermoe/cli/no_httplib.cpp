#include "hetermoe/base/error.h"
#include "hetermoe/cli/live_server.h"

// In the place of httplib.cpp, where cpp-httplib is missing.
namespace hetermoe {

void serve_live(LiveRun&, int, const std::function<void(int)>&) {
  fail<DeviceError>("watch",
                    "this build has no cpp-httplib: install libcpp-httplib-dev (./dev setup does) and build "
                    "again, or point TensorBoard at the run's tensorboard/ folder");
}

}  // namespace hetermoe
