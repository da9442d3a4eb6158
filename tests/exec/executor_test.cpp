#include "hetermoe/exec/executor.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <map>
#include <mutex>
#include <set>
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

/// The whole device waits for the norm, so its sums of squares are divided among the threads of compute ops.
TEST(Executor, TheNormHasTheThreadsOfComputeOpsAndOtherTransfersOne) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  std::vector<double> norms;
  for (const i32 threads : {1, 3}) {
    RigOptions options;
    options.executor.threads_per_lane = threads;
    std::mutex mutex;
    std::map<OpKind, std::set<int>> threads_of;
    options.executor.before_op = [&](const Op& op, DeviceId) {
      const std::lock_guard lock(mutex);
      threads_of[op.kind].insert(at::get_num_threads());
    };
    Rig rig(model, cluster, find_strategy("zebra").make(model, cluster, small_step()), options);
    norms.push_back(rig.executor().run(random_input(rig.plan(), rig.model())).grad_norm);
    for (const auto& [kind, counts] : threads_of)
      EXPECT_EQ(counts, std::set<int>{is_compute(kind) || kind == OpKind::kNorm ? threads : 1})
          << name_of(kind);
    EXPECT_TRUE(threads_of.contains(OpKind::kNorm) && threads_of.contains(OpKind::kCombine));
  }
  EXPECT_EQ(norms[0], norms[1]) << "to the bit";
}

}  // namespace
}  // namespace hetermoe::testing
