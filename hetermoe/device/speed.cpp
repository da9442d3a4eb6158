#include "hetermoe/device/speed.h"

#include <ATen/ATen.h>
#include <c10/core/GradMode.h>

#include <algorithm>
#include <chrono>
#include <functional>

#include "hetermoe/device/accelerator.h"

namespace hetermoe {
namespace {

Seconds now() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Seconds of the fastest run.
Seconds fastest(c10::Device device, Seconds budget, const std::function<void()>& run) {
  const auto timed = [&] {
    const Seconds begin = now();
    run();
    finish_stream(device);
    return std::max(now() - begin, 1e-9);
  };
  timed();
  Seconds best = timed(), spent = best;
  while (spent < budget) {
    const Seconds seconds = timed();
    best = std::min(best, seconds);
    spent += seconds;
  }
  return best;
}

double product_speed(c10::Device device, at::ScalarType dtype, i64 size, Seconds budget) {
  const at::Tensor a = at::ones({size, size}, at::TensorOptions(dtype).device(device)), b = a.clone();
  at::Tensor out = at::empty_like(a);
  const double operations =
      2.0 * static_cast<double>(size) * static_cast<double>(size) * static_cast<double>(size);
  return operations / fastest(device, budget, [&] { at::mm_out(out, a, b); });
}

double copy_speed(c10::Device device, i64 bytes, Seconds budget) {
  const at::Tensor from = at::ones({bytes}, at::TensorOptions(at::kByte).device(device));
  at::Tensor to = at::empty_like(from);
  return 2.0 * static_cast<double>(bytes) / fastest(device, budget, [&] { to.copy_(from); });
}

}  // namespace

DeviceSpeed measure_speed(c10::Device device, Seconds budget) {
  const c10::NoGradGuard no_grad;
  // Large enough for full speed, small enough for a processor that computes 16 bits slowly.
  const i64 size = device.is_cpu() ? 384 : 8192;
  const i64 bytes = device.is_cpu() ? i64{64} << 20 : i64{512} << 20;
  DeviceSpeed out;
  out.fp32 = product_speed(device, at::kFloat, size, budget);
  out.bf16 = product_speed(device, at::kBFloat16, size, budget);
  out.fp16 = product_speed(device, at::kHalf, size, budget);
  out.copy = copy_speed(device, bytes, budget);
  return out;
}

}  // namespace hetermoe
