#pragma once
#include "hetermoe/kernels/table.h"

namespace hetermoe::kernels {

/// While one lives, kernels take CPU tensors, too, in the whole process: what runs on a GPU runs here, every
/// kernel block after block on the calling thread. So do operators of libtorch that it has for GPUs alone.
/// For tests; slow. With more than one thread per block their order is checked as well: each is a thread of
/// its own, and they meet where the kernel says so. Threads may make and drop these at any time; launches
/// that are under way finish.
class HostKernels {
 public:
  explicit HostKernels(i32 threads_per_block = 1);
  ~HostKernels();
  HostKernels(const HostKernels&) = delete;
  HostKernels& operator=(const HostKernels&) = delete;
  static bool on();
  static i32 threads_per_block();  ///< of the newest one

 private:
  i32 before_;
};

/// Runs all blocks. Memory that threads share begins as NaNs, so that no kernel relies on zeros.
void run_on_host(const Kernel& kernel, i64 num_blocks, i32 threads_per_block, i64 shared_bytes,
                 const void* arguments);

}  // namespace hetermoe::kernels
