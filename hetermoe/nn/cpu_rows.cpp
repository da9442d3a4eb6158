#include "hetermoe/nn/cpu_rows.h"

#include <bit>
#include <cstring>

#include "hetermoe/nn/simd.h"

#if defined(__x86_64__) && defined(__GNUC__)
#include <immintrin.h>
#define HM_HALVES 1
#endif

namespace hetermoe {
namespace {

using Bits = std::uint16_t;

HM_CLONES void widen_bf16(const Bits* from, float* to, i64 count) {
  for (i64 i = 0; i < count; ++i) to[i] = std::bit_cast<float>(static_cast<std::uint32_t>(from[i]) << 16);
}

HM_CLONES void narrow_bf16(const float* __restrict from, Bits* __restrict to, i64 count) {
  for (i64 i = 0; i < count; ++i) {
    const auto bits = std::bit_cast<std::uint32_t>(from[i]);
    const std::uint32_t rounded = (bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16;
    const bool is_nan = (bits & 0x7fffffffU) > 0x7f800000U;  // which rounding could make an infinity
    to[i] = static_cast<Bits>(is_nan ? 0x7fc0U : rounded);
  }
}

#ifdef HM_HALVES
constexpr i64 kLanes = 8;

/// How many of the numbers are done: whole vectors.
[[gnu::target("avx,f16c")]] i64 widen_vectors(const at::Half* from, float* to, i64 count) {
  i64 i = 0;
  for (; i + kLanes <= count; i += kLanes)
    _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  return i;
}

[[gnu::target("avx,f16c")]] i64 narrow_vectors(const float* from, at::Half* to, i64 count) {
  i64 i = 0;
  for (; i + kLanes <= count; i += kLanes)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i),
                     _mm256_cvtps_ph(_mm256_loadu_ps(from + i), _MM_FROUND_TO_NEAREST_INT));
  return i;
}

bool has_halves() {
  static const bool has = __builtin_cpu_supports("avx") && __builtin_cpu_supports("f16c");
  return has;
}
#else
bool has_halves() { return false; }
i64 widen_vectors(const at::Half*, float*, i64) { return 0; }
i64 narrow_vectors(const float*, at::Half*, i64) { return 0; }
#endif

}  // namespace

void widen(const at::BFloat16* from, float* to, i64 count) {
  widen_bf16(reinterpret_cast<const Bits*>(from), to, count);
}

void widen(const at::Half* from, float* to, i64 count) {
  for (i64 i = has_halves() ? widen_vectors(from, to, count) : 0; i < count; ++i) to[i] = from[i];
}

void narrow(const float* from, at::BFloat16* to, i64 count) {
  narrow_bf16(from, reinterpret_cast<Bits*>(to), count);
}

void narrow(const float* from, at::Half* to, i64 count) {
  for (i64 i = has_halves() ? narrow_vectors(from, to, count) : 0; i < count; ++i) to[i] = at::Half(from[i]);
}

}  // namespace hetermoe
