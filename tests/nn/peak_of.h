#pragma once
#include <ATen/Parallel.h>

#include "hetermoe/exec/memory_meter.h"

namespace hetermoe::testing {

/// Most bytes of tensors that `run` has alive at once, over those before. It runs in one thread, because only
/// this thread's tensors are counted.
template <class Run>
Bytes peak_of(Run run) {
  const int num_threads = at::get_num_threads();
  at::set_num_threads(1);
  MemoryMeter meter;
  {
    MemoryMeter::Watch watch(meter, 0);
    run();
  }
  at::set_num_threads(num_threads);
  return meter.of(0, 0).peak;
}

}  // namespace hetermoe::testing
