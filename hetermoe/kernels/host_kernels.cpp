#include "hetermoe/kernels/host_kernels.h"

#include <atomic>
#include <cstring>
#include <thread>

#include "hetermoe/base/index.h"
#include "hetermoe/kernels/host_block.h"
#include "hetermoe/kernels/host_operators.h"

namespace hetermoe::kernels {
namespace {

std::atomic<i32> num_alive = 0, threads_now = 1;

/// Goes through all blocks as thread `own.thread` of each.
void run_thread(const Kernel& kernel, HostBlock own, i64 shared_bytes, const void* arguments) {
  HostBlock& place = host_block();
  const HostBlock before = place;
  for (own.block = 0; own.block < own.num_blocks; ++own.block) {
    if (own.thread == 0) std::memset(own.shared, 0xff, idx(shared_bytes));
    own.meet();
    place = own;
    kernel.on_host(arguments);
    own.meet();
  }
  place = before;
}

}  // namespace

HostKernels::HostKernels(i32 threads_per_block) : before_(threads_now.exchange(threads_per_block)) {
  register_host_operators();
  ++num_alive;
}
HostKernels::~HostKernels() {
  --num_alive;
  threads_now = before_;
}
bool HostKernels::on() { return num_alive > 0; }
i32 HostKernels::threads_per_block() { return threads_now; }

void run_on_host(const Kernel& kernel, i64 num_blocks, i32 threads_per_block, i64 shared_bytes,
                 const void* arguments) {
  std::vector<double> shared(idx(shared_bytes / 8 + 1)), exchange(idx(threads_per_block));
  HostBlock block;
  block.num_threads = threads_per_block;
  block.num_blocks = num_blocks;
  block.shared = reinterpret_cast<char*>(shared.data());
  block.exchange = exchange.data();
  if (threads_per_block == 1) return run_thread(kernel, block, shared_bytes, arguments);
  std::barrier<> barrier(threads_per_block);
  block.barrier = &barrier;
  std::vector<std::jthread> threads;
  for (block.thread = 0; block.thread < threads_per_block; ++block.thread)
    threads.emplace_back([&, block] { run_thread(kernel, block, shared_bytes, arguments); });
}

}  // namespace hetermoe::kernels
