#pragma once
#include <ATen/Parallel.h>

namespace hetermoe::testing {

/// What f returns when libtorch works with so many threads.
template <class F>
auto with_threads(int threads, const F& f) {
  const int before = at::get_num_threads();
  at::set_num_threads(threads);
  auto out = f();
  at::set_num_threads(before);
  return out;
}

}  // namespace hetermoe::testing
