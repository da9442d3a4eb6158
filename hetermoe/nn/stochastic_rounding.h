#pragma once
#include <ATen/ATen.h>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// Rounds fp32 numbers to bf16, up or down, with odds that make the mean of many roundings the number itself.
/// So sums of small steps grow where rounding to nearest would not change them. Infinite numbers and NaN
/// stay. The draw of element i follows from key and first + i alone, on every device alike.
///
/// wide: [n] fp32, narrow: [n] bf16, both contiguous, on one device.
void round_stochastically(const at::Tensor& wide, const at::Tensor& narrow, u64 key, i64 first);
/// The same by whole tensors, for devices other than CPUs.
void round_by_tensors(const at::Tensor& wide, const at::Tensor& narrow, u64 key, i64 first);

}  // namespace hetermoe
