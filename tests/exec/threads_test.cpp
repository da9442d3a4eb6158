#include "hetermoe/exec/threads.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace hetermoe {
namespace {

int threads_of_a_parallel_loop() {
  std::atomic<int> others = 0;
  at::parallel_for(0, 2, 1, [&](i64, i64) { others += at::get_thread_num() == 0 ? 0 : 1; });
  return others + 1;
}

TEST(ThreadsTest, EachThreadKeepsItsOwnNumber) {
#ifndef _OPENMP
  GTEST_SKIP() << "not built with OpenMP";
#endif
  int in_lane = 0, after_operators = 0, in_other = 0;
  std::thread([&] {
    use_threads(2);
    std::thread([&] {
      use_threads(1);
      in_other = threads_of_a_parallel_loop();
    }).join();
    in_lane = threads_of_a_parallel_loop();
    const at::Tensor a = at::ones({256, 256});
    at::relu(at::mm(a, a));
    after_operators = at::get_num_threads();
  }).join();
  EXPECT_EQ(in_lane, 2);
  EXPECT_EQ(in_other, 1);
  EXPECT_EQ(after_operators, 2);
}

}  // namespace
}  // namespace hetermoe
