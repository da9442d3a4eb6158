#include "hetermoe/exec/threads.h"

#include <ATen/Parallel.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include <algorithm>
#include <thread>

#include "hetermoe/base/error.h"

namespace hetermoe {

i64 most_threads() { return std::max<i64>(16, 4 * static_cast<i64>(std::thread::hardware_concurrency())); }

void check_threads(const std::string& key, i64 count) {
  if (count >= 1 && count <= most_threads()) return;
  fail<ConfigError>(key, "got {}, expected 1 to {}: this machine has {} cores", count, most_threads(),
                    std::thread::hardware_concurrency());
}

void use_threads(i32 count) {
  // Each thread once takes the number that was last set anywhere, on its first parallel operator: in an
  // inline function, which exists in this program and in libtorch. Done here, it cannot overwrite ours later.
  at::internal::lazy_init_num_threads();
  at::get_num_threads();
#ifdef _OPENMP
  omp_set_num_threads(count);  // at::set_num_threads would set MKL's number too, for the whole process
#else
  at::set_num_threads(count);
#endif
}

}  // namespace hetermoe
