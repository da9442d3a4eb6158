#pragma once
#include <time.h>

#include "hetermoe/base/types.h"

namespace hetermoe::testing {

/// Processor time of the calling thread: what else the machine does takes none of it.
inline Seconds processor_time() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<Seconds>(now.tv_sec) + 1e-9 * static_cast<Seconds>(now.tv_nsec);
}

}  // namespace hetermoe::testing
