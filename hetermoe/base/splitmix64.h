#pragma once
// One text for the program and for kernels on GPUs, whose types kernels/language.h has defined before.
#ifdef __CUDACC__
#define HM_EVERYWHERE __device__ __forceinline__
#else
#include "hetermoe/base/types.h"
#define HM_EVERYWHERE constexpr
#endif

namespace hetermoe {

/// The mixing function of splitmix64 (Steele, Lea and Flood 2014): every bit of the result depends on every
/// bit of x.
HM_EVERYWHERE u64 splitmix64(u64 x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace hetermoe
