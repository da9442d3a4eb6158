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

/// e^x in plain arithmetic that compilers vectorise (std::exp does not without fast-math): x = n ln2 + r, a
/// polynomial of degree 6 in r (Cephes expf), and n put into the exponent. Error below 2 units in the last
/// place.
[[gnu::always_inline]] inline float fast_exp(float x) {
  x = std::min(88.0f, std::max(-87.0f, x));
  const float shifted = x * 1.44269504f + 12582912.0f;  // adding 1.5 * 2^23 rounds to an integer
  const float n = shifted - 12582912.0f;
  const float r = (x - n * 0.693359375f) + n * 2.12194440e-4f;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.0f;
  const auto exponent = static_cast<std::int32_t>(n) + 127;
  return p * std::bit_cast<float>(exponent << 23);
}

}  // namespace hetermoe
