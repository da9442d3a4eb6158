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

/// The error of an executor for four devices to which the system gives so many threads, when it is made or
/// used.
std::string error_with_threads(int most, bool is_used) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  RigOptions options;
  options.executor.start_thread = [left = most](std::function<void()> work) mutable {
    if (left-- == 0) throw std::system_error(EAGAIN, std::generic_category());
    return std::thread(std::move(work));
  };
  return error_of<DeviceError>([&] {
    Rig rig(model, cluster, find_strategy("zebra").make(model, cluster, small_step()), options);
    if (is_used) rig.executor().run(StepInput{});
  });
}

TEST(Executor, ThreadsThatTheSystemDoesNotGiveAreAnErrorWithASentence) {
  EXPECT_EQ(error_with_threads(0, /*is_used=*/false), "no error");  // who only predicts needs none
  for (const int most : {0, 3}) {
    const std::string error = error_with_threads(most, /*is_used=*/true);
    EXPECT_TRUE(error.starts_with(fmt::format("[executor] cannot start thread {} of ", most + 1))) << error;
    EXPECT_NE(
        error.find("one for each queue of 4 devices: Resource temporarily unavailable. Raise the limit"),
        std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace hetermoe::testing
