#pragma once
// The language of the kernels. A kernel is one text that NVRTC compiles for GPUs and the C++ compiler for the
// host, where a test runs it block after block. It asks for its place by the functions below and works with
// any number of threads in a block (on a GPU: multiples of 32), so that one thread can do the work of a
// block.
#ifdef __CUDACC__
#define HM_DEVICE __device__ __forceinline__
namespace hetermoe {
using i64 = long;
using i32 = int;
using u64 = unsigned long;
using u32 = unsigned;
using u16 = unsigned short;
}  // namespace hetermoe
#else
#include <atomic>
#include <cmath>
#include <cstring>

#include "hetermoe/base/types.h"
#include "hetermoe/kernels/host_block.h"
#define HM_DEVICE inline
namespace hetermoe {
using u32 = std::uint32_t;
using u16 = std::uint16_t;
}  // namespace hetermoe
#endif
#include "hetermoe/base/splitmix64.h"

namespace hetermoe::kernels {

#ifdef __CUDACC__

extern __shared__ double dynamic_shared[];

HM_DEVICE i32 thread() { return static_cast<i32>(threadIdx.x); }
HM_DEVICE i32 num_threads() { return static_cast<i32>(blockDim.x); }
HM_DEVICE i64 block() { return blockIdx.x; }
HM_DEVICE i64 num_blocks() { return gridDim.x; }
/// Returns once all threads of the block are here.
HM_DEVICE void meet() { __syncthreads(); }
/// Memory that the threads of a block share, as large as the launch says.
template <class T>
HM_DEVICE T* shared() {
  return reinterpret_cast<T*>(dynamic_shared);
}
/// Adds whole numbers, whose sum is the same in any order.
HM_DEVICE void add_atomically(i64* sum, i64 x) {
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(x));
}

#else

inline i32 thread() { return host_block().thread; }
inline i32 num_threads() { return host_block().num_threads; }
inline i64 block() { return host_block().block; }
inline i64 num_blocks() { return host_block().num_blocks; }
inline void meet() { host_block().meet(); }
template <class T>
T* shared() {
  return reinterpret_cast<T*>(host_block().shared);
}
inline void add_atomically(i64* sum, i64 x) { std::atomic_ref<i64>(*sum).fetch_add(x); }

#endif

template <class T>
HM_DEVICE T smaller(T a, T b) {
  return a < b ? a : b;
}
template <class T>
HM_DEVICE T larger(T a, T b) {
  return a > b ? a : b;
}

}  // namespace hetermoe::kernels
