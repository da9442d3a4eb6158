#pragma once
#include "hetermoe/kernels/language.h"
#ifndef __CUDACC__
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <bit>
#endif

// Elements in memory and the numbers that kernels compute with: 16-bit elements are widened to fp32 as they
// are read and rounded to nearest even as they are written. fp64 stays fp64.
namespace hetermoe::kernels {

struct Bf16 {
  u16 bits;
};
struct Half {
  u16 bits;
};

template <class Element>
struct WideOf {
  using Type = float;
};
template <>
struct WideOf<double> {
  using Type = double;
};
template <class Element>
using Wide = typename WideOf<Element>::Type;

HM_DEVICE float widen(float x) { return x; }
HM_DEVICE double widen(double x) { return x; }

#ifdef __CUDACC__
HM_DEVICE u32 bits_of(float x) { return __float_as_uint(x); }
HM_DEVICE float float_of(u32 bits) { return __uint_as_float(bits); }
// Never contracted to one rounding: results are those of the host, to the bit.
HM_DEVICE double plain_product(double a, double b) { return __dmul_rn(a, b); }
HM_DEVICE double plain_sum(double a, double b) { return __dadd_rn(a, b); }
HM_DEVICE float widen(Bf16 x) { return __uint_as_float(static_cast<u32>(x.bits) << 16); }
HM_DEVICE float widen(Half x) {
  float out;
  asm("cvt.f32.f16 %0, %1;" : "=f"(out) : "h"(x.bits));
  return out;
}
HM_DEVICE void narrow(float x, Half& out) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(out.bits) : "f"(x)); }
HM_DEVICE void narrow(float x, Bf16& out) {
#if __CUDA_ARCH__ >= 800
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(out.bits) : "f"(x));
#else
  const u32 bits = __float_as_uint(x);
  const u32 rounded = bits + 0x7fff + ((bits >> 16) & 1);
  out.bits = static_cast<u16>(x != x ? 0x7fff : rounded >> 16);
#endif
}
#else
inline u32 bits_of(float x) { return std::bit_cast<u32>(x); }
inline float float_of(u32 bits) { return std::bit_cast<float>(bits); }
inline double plain_product(double a, double b) { return a * b; }
inline double plain_sum(double a, double b) { return a + b; }
inline float widen(Bf16 x) { return c10::detail::f32_from_bits(x.bits); }
inline float widen(Half x) { return c10::detail::fp16_ieee_to_fp32_value(x.bits); }
inline void narrow(float x, Bf16& out) { out.bits = c10::detail::round_to_nearest_even(x); }
inline void narrow(float x, Half& out) { out.bits = c10::detail::fp16_ieee_from_fp32_value(x); }
#endif
HM_DEVICE void narrow(float x, float& out) { out = x; }
HM_DEVICE void narrow(double x, double& out) { out = x; }

/// x as it is once it has been stored.
template <class Element>
HM_DEVICE Wide<Element> rounded(Wide<Element> x) {
  Element out;
  narrow(x, out);
  return widen(out);
}

HM_DEVICE float exponential(float x) { return expf(x); }
HM_DEVICE double exponential(double x) { return exp(x); }
HM_DEVICE float logarithm(float x) { return logf(x); }
HM_DEVICE double logarithm(double x) { return log(x); }
HM_DEVICE float root(float x) { return sqrtf(x); }
HM_DEVICE double root(double x) { return sqrt(x); }

/// 1 / x. The exact division of fp32 would be a call, which costs registers; this one is off by two units at
/// most.
#ifdef __CUDACC__
HM_DEVICE float reciprocal(float x) { return __fdividef(1.0f, x); }
#else
inline float reciprocal(float x) { return 1.0f / x; }
#endif
HM_DEVICE double reciprocal(double x) { return 1.0 / x; }

/// Elements that are moved by one instruction of 16 bytes.
template <class Element>
constexpr int kPack = static_cast<int>(16 / sizeof(Element));

#ifdef __CUDACC__
using Bytes16 = uint4;
HM_DEVICE Bytes16 bytes_of(const float (&x)[4]) {
  return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
}
HM_DEVICE Bytes16 bytes_of(const double (&x)[2]) {
  return {static_cast<u32>(__double2loint(x[0])), static_cast<u32>(__double2hiint(x[0])),
          static_cast<u32>(__double2loint(x[1])), static_cast<u32>(__double2hiint(x[1]))};
}
template <class Element>
HM_DEVICE Bytes16 bytes_of(const Element (&x)[8]) {
  const auto word = [&](int i) { return x[2 * i].bits | static_cast<u32>(x[2 * i + 1].bits) << 16; };
  return {word(0), word(1), word(2), word(3)};
}
/// In one instruction: the compiler may make four of a plain assignment.
HM_DEVICE void store_bytes(void* to, const Bytes16& x) {
  asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
               :
               : "l"(__cvta_generic_to_global(to)), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w)
               : "memory");
}
#else
struct alignas(16) Bytes16 {
  u64 words[2];
};
template <class Element, std::size_t N>
Bytes16 bytes_of(const Element (&x)[N]) {
  static_assert(sizeof x == 16);
  Bytes16 out;
  std::memcpy(&out, x, 16);
  return out;
}
inline void store_bytes(void* to, const Bytes16& x) { std::memcpy(to, &x, 16); }
#endif

/// N neighbours as they lie in global memory; with N > 1 they fill 16 bytes and lie at a multiple of 16.
template <int N, class Element>
struct Pack {
  static_assert(N * sizeof(Element) == 16);
  Bytes16 raw;
};
template <class Element>
struct Pack<1, Element> {
  Element raw;
};
template <int N, class Element>
HM_DEVICE Pack<N, Element> read_pack(const Element* from) {
  return {*reinterpret_cast<const decltype(Pack<N, Element>::raw)*>(from)};
}
template <int N, class Element>
HM_DEVICE void widen_pack(Wide<Element> (&out)[N], const Pack<N, Element>& pack) {
  Element elements[N];
  memcpy(elements, &pack.raw, sizeof elements);
  for (int i = 0; i < N; ++i) out[i] = widen(elements[i]);
}
template <int N, class Element>
HM_DEVICE void load(Wide<Element> (&out)[N], const Element* from) {
  widen_pack<N, Element>(out, read_pack<N>(from));
}
template <int N, class Element>
HM_DEVICE void store(Element* to, const Wide<Element> (&values)[N]) {
  if constexpr (N == 1) {
    narrow(values[0], *to);
  } else {
    static_assert(N * sizeof(Element) == 16);
    Element elements[N];
    for (int i = 0; i < N; ++i) narrow(values[i], elements[i]);
    store_bytes(to, bytes_of(elements));
  }
}

/// N neighbours at a time; N wide numbers are N / 4 packs of 16 bytes, which lie at a multiple of 16.
template <int N, class Element>
HM_DEVICE void load_many(Wide<Element> (&out)[N], const Element* from) {
  if constexpr (N == 1) {
    load<1>(out, from);
  } else {
    constexpr int kStep = N < kPack<Element> ? 1 : kPack<Element>;
    for (int i = 0; i < N; i += kStep) {
      Wide<Element> part[kStep];
      load<kStep>(part, from + i);
      for (int j = 0; j < kStep; ++j) out[i + j] = part[j];
    }
  }
}
template <int N, class Element>
HM_DEVICE void store_many(Element* to, const Wide<Element> (&values)[N]) {
  if constexpr (N == 1) {
    store<1>(to, values);
  } else {
    constexpr int kStep = N < kPack<Element> ? 1 : kPack<Element>;
    for (int i = 0; i < N; i += kStep) {
      Wide<Element> part[kStep];
      for (int j = 0; j < kStep; ++j) part[j] = values[i + j];
      store<kStep>(to + i, part);
    }
  }
}

}  // namespace hetermoe::kernels
