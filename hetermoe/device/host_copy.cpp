#include "hetermoe/device/host_copy.h"

#include <atomic>

#include "hetermoe/base/error.h"
#include "hetermoe/device/accelerator.h"

namespace hetermoe {
namespace {

std::atomic<HostWaits*> counted_by = nullptr;

at::Tensor pinned_like(const at::Tensor& tensor) {
  return at::empty(tensor.sizes(), tensor.options().device(at::kCPU).pinned_memory(true));
}

}  // namespace

at::Tensor to_host(const at::Tensor& tensor, const char* what) {
  if (HostWaits* const waits = counted_by) {
    const std::lock_guard lock(waits->mutex_);
    ++waits->counts_[what];
  }
  const at::Tensor host = start_to_host(tensor);
  finish_stream(tensor.device());
  return host;
}

at::Tensor start_to_host(const at::Tensor& tensor) {
  return tensor.device().is_cpu() ? tensor : pinned_like(tensor).copy_(tensor, /*non_blocking=*/true);
}

at::Tensor to_device(const at::Tensor& tensor, c10::Device device) {
  if (!tensor.defined()) return tensor;
  if (device.is_cpu() || !tensor.device().is_cpu()) return tensor.to(device);
  const at::Tensor pinned = tensor.is_pinned() ? tensor : pinned_like(tensor).copy_(tensor);
  return pinned.to(tensor.options().device(device), /*non_blocking=*/true);
}

HostWaits::HostWaits() { HM_CHECK(counted_by.exchange(this) == nullptr, "two count the waits of the host"); }

HostWaits::~HostWaits() { counted_by = nullptr; }

std::map<std::string, i64> HostWaits::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace hetermoe
