#include "hetermoe/device/host_copy.h"

#include <dlfcn.h>

#include <atomic>
#include <set>

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

LockedMemory::LockedMemory(const std::vector<at::Tensor>& tensors) {
  using Register = int(void* begin, std::size_t bytes, unsigned flags);
  auto* const lock = reinterpret_cast<Register*>(dlsym(RTLD_DEFAULT, "cudaHostRegister"));
  constexpr std::size_t kLeast = std::size_t{1} << 20;
  std::set<void*> seen;
  for (const at::Tensor& tensor : tensors) {
    void* const begin = tensor.storage().mutable_data();
    const std::size_t bytes = tensor.storage().nbytes();
    if (!tensor.device().is_cpu() || bytes < kLeast || !seen.insert(begin).second) continue;
    constexpr int kNoFunction = -1;
    const int error = lock == nullptr ? kNoFunction : lock(begin, bytes, 0);
    if (error == 0) {
      locked_.push_back(begin);
    } else {
      missing_ += static_cast<Bytes>(bytes);
      error_ = error;
    }
  }
}

LockedMemory::~LockedMemory() {
  using Unregister = int(void* begin);
  auto* const unlock = reinterpret_cast<Unregister*>(dlsym(RTLD_DEFAULT, "cudaHostUnregister"));
  for (void* const begin : locked_) unlock(begin);
}

HostWaits::HostWaits() { HM_CHECK(counted_by.exchange(this) == nullptr, "two count the waits of the host"); }

HostWaits::~HostWaits() { counted_by = nullptr; }

std::map<std::string, i64> HostWaits::counts() const {
  const std::lock_guard lock(mutex_);
  return counts_;
}

}  // namespace hetermoe
