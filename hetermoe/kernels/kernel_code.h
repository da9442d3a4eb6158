#pragma once
#include <span>

#include "hetermoe/kernels/code_cache.h"
#include "hetermoe/kernels/table.h"

// Machine code of kernels, by the folder of compiled kernels and NVRTC, which has to be there.
namespace hetermoe::kernels {

/// Code of a kernel for GPUs of a compute capability (90 for 9.0): cached, or compiled now. The same in later
/// calls, without a look into the cache. May be called by any thread: those that want the same kernel wait
/// for one compilation, others are compiled at the same time. Throws what compile_cuda() throws.
CachedCode kernel_code(const Kernel& kernel, int capability);

/// kernel_code() of all kernels that work on no other elements than these, by so many threads. So the first
/// step of a run does not compile one after the other. Returns how many kernels these are.
i64 compile_ahead(int capability, std::span<const at::ScalarType> elements, i64 num_threads);

}  // namespace hetermoe::kernels
