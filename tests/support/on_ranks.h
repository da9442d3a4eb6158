#pragma once
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/error_of.h"
#include "tests/support/fake_nccl.h"

namespace hetermoe::testing {

/// Runs `work` on each of so many ranks, threads that gather from each other. The words of each one's error,
/// "no error" where there is none.
inline std::vector<std::string> on_ranks(i32 num_ranks, const std::function<void(const Processes&)>& work) {
  NcclWorld world(num_ranks);
  std::vector<std::string> errors(static_cast<std::size_t>(num_ranks));
  std::vector<std::thread> threads;
  for (i32 r = 0; r < num_ranks; ++r) {
    threads.emplace_back([&, r] {
      const RankThread rank(world, r);
      errors[static_cast<std::size_t>(r)] = error_of([&] { work(rank); });
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace hetermoe::testing
