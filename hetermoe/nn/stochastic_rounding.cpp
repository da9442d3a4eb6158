#include "hetermoe/nn/stochastic_rounding.h"

#include <bit>
#include <cmath>
#include <cstdint>

#include "hetermoe/base/error.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr i64 kLow = 0xffff;  // bits of an fp32 number that bf16 lacks

void round_on_cpu(const float* wide, at::BFloat16* narrow, i64 count, u64 key, i64 first) {
  for (i64 i = 0; i < count; ++i) {
    if (!std::isfinite(wide[i])) {
      narrow[i] = wide[i];
      continue;
    }
    const u64 draw = splitmix64(key + static_cast<u64>(first + i));
    const std::uint32_t bits =
        std::bit_cast<std::uint32_t>(wide[i]) + static_cast<std::uint32_t>(draw & kLow);
    narrow[i] = at::BFloat16(static_cast<std::uint16_t>(bits >> 16), at::BFloat16::from_bits());
  }
}

at::Tensor shifted(const at::Tensor& x, i64 by) {  // without the sign
  return x.bitwise_right_shift(by).bitwise_and_((i64{1} << (64 - by)) - 1);
}

/// splitmix64 of whole tensors: the same draws as on a CPU.
at::Tensor draws(const at::Tensor& like, u64 key, i64 first) {
  at::Tensor x = at::arange(first, first + like.numel(), like.options().dtype(at::kLong));
  x += static_cast<i64>(key + 0x9e3779b97f4a7c15);
  x = x.bitwise_xor_(shifted(x, 30)).mul_(static_cast<i64>(0xbf58476d1ce4e5b9));
  x = x.bitwise_xor_(shifted(x, 27)).mul_(static_cast<i64>(0x94d049bb133111eb));
  return x.bitwise_xor_(shifted(x, 31));
}

}  // namespace

void round_by_tensors(const at::Tensor& wide, const at::Tensor& narrow, u64 key, i64 first) {
  const at::Tensor bits = wide.view(at::kInt) + draws(wide, key, first).bitwise_and_(kLow).to(at::kInt);
  const at::Tensor rounded = bits.bitwise_and(static_cast<i64>(i32{-1} << 16)).view(at::kFloat);
  narrow.copy_(at::where(wide.isfinite(), rounded, wide));
}

void round_stochastically(const at::Tensor& wide, const at::Tensor& narrow, u64 key, i64 first) {
  HM_CHECK(wide.is_contiguous() && narrow.is_contiguous() && wide.numel() == narrow.numel() &&
               wide.scalar_type() == at::kFloat && narrow.scalar_type() == at::kBFloat16,
           "rounds contiguous fp32 to bf16");
  if (!wide.is_cpu()) return round_by_tensors(wide.view(-1), narrow.view(-1), key, first);
  round_on_cpu(wide.const_data_ptr<float>(), narrow.mutable_data_ptr<at::BFloat16>(), wide.numel(), key,
               first);
}

}  // namespace hetermoe
