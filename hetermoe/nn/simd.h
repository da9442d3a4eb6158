#pragma once
#include <algorithm>
#include <bit>
#include <cstdint>

// One function, compiled for several instruction sets and chosen when the program starts.
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) && \
    !defined(__SANITIZE_THREAD__)
#define HM_CLONES __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define HM_CLONES
#endif

namespace hetermoe {

/// x = n ln2 + rest, and e^rest by a polynomial of degree 6 (Cephes expf), in plain arithmetic on a float or
/// a vector of floats. Error below 2 units in the last place.
template <class T>
[[gnu::always_inline]] inline void split_exp(const T& x, T& n, T& exp_of_rest) {
  const T shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  n = shifted - 12582912.0f;
  const T r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  T p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  exp_of_rest = p * r * r + r + 1.0f;
}

/// e^x as compilers vectorise it (std::exp they do not without fast-math): n goes into the exponent.
[[gnu::always_inline]] inline float fast_exp(float x) {
  float n, p;
  split_exp(std::min(88.0f, std::max(-87.0f, x)), n, p);
  return p * std::bit_cast<float>((static_cast<std::int32_t>(n) + 127) << 23);
}

}  // namespace hetermoe
