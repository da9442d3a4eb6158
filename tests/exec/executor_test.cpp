#include "hetermoe/exec/executor.h"

#include <gtest/gtest.h>

#include <system_error>

#include "hetermoe/base/error.h"
#include "hetermoe/cluster/cluster.h"
#include "tests/support/error_of.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

/// The error of an executor for four devices to which the system gives so many threads.
std::string error_with_threads(int most) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  RigOptions options;
  options.executor.start_thread = [left = most](std::function<void()> work) mutable {
    if (left-- == 0) throw std::system_error(EAGAIN, std::generic_category());
    return std::thread(std::move(work));
  };
  return error_of<DeviceError>([&] {
    const Rig rig(model, cluster, find_strategy("zebra").make(model, cluster, small_step()), options);
  });
}

TEST(Executor, ThreadsThatTheSystemDoesNotGiveAreAnErrorWithASentence) {
  EXPECT_EQ(error_with_threads(1000), "no error");
  for (const int most : {0, 3}) {
    const std::string error = error_with_threads(most);
    EXPECT_TRUE(error.starts_with(fmt::format("[executor] cannot start thread {} of ", most + 1))) << error;
    EXPECT_NE(
        error.find("one for each queue of 4 devices: Resource temporarily unavailable. Raise the limit"),
        std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace hetermoe::testing
