#include "hetermoe/exec/threads.h"

#include <ATen/Parallel.h>
#ifdef _OPENMP
#include <omp.h>
#endif

namespace hetermoe {

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
