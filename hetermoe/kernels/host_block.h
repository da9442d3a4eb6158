#pragma once
#include <barrier>

#include "hetermoe/base/types.h"

namespace hetermoe::kernels {

/// Position of a thread of a kernel that runs on the host.
struct HostBlock {
  i32 thread = 0, num_threads = 1;
  i64 block = 0, num_blocks = 1;
  char* shared = nullptr;             ///< memory of the block
  double* exchange = nullptr;         ///< one place for each thread, for sums over the block
  std::barrier<>* barrier = nullptr;  ///< null in a block of one thread

  void meet() const {
    if (barrier != nullptr) barrier->arrive_and_wait();
  }
};

/// That of the calling thread.
inline HostBlock& host_block() {
  thread_local HostBlock own;
  return own;
}

}  // namespace hetermoe::kernels
