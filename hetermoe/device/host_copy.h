#pragma once
#include <ATen/ATen.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

// The ways of tensors between a device and its host. A host that asks a GPU for numbers waits until the GPU
// has come there, and the GPU then waits for the host: so all who do it are counted.
namespace hetermoe {

/// A tensor on the host, by way of pinned memory. Waits for the calling thread's stream. On a CPU the tensor
/// itself. `what` names the reason, for HostWaits.
at::Tensor to_host(const at::Tensor& tensor, const char* what);

/// The same without waiting: it holds the values when what was launched on the stream so far has ended.
at::Tensor start_to_host(const at::Tensor& tensor);

/// A host tensor on a device; does not wait. On a CPU the tensor itself, and so is an undefined one.
at::Tensor to_device(const at::Tensor& tensor, c10::Device device);

/// Locks the memory of host tensors in its place while it lives (cudaHostRegister). Copies between it and a
/// GPU then run at the rate of the link, and nobody waits for them. Tensors below 1 MiB stay as they are.
/// They live at least as long as the object.
class LockedMemory {
 public:
  LockedMemory() = default;
  explicit LockedMemory(const std::vector<at::Tensor>& tensors);
  ~LockedMemory();
  LockedMemory(LockedMemory&&) noexcept = default;
  LockedMemory& operator=(LockedMemory&&) = delete;
  /// Memory that could not be locked, and the number of CUDA's error; 0 = all is.
  Bytes missing() const { return missing_; }
  int error() const { return error_; }

 private:
  std::vector<void*> locked_;
  Bytes missing_ = 0;
  int error_ = 0;
};

/// Counts calls of to_host() while it lives, also those of tensors that are on a CPU. One at a time.
class HostWaits {
 public:
  HostWaits();
  ~HostWaits();
  HostWaits(const HostWaits&) = delete;
  HostWaits& operator=(const HostWaits&) = delete;
  /// By reason.
  std::map<std::string, i64> counts() const;

 private:
  friend at::Tensor to_host(const at::Tensor& tensor, const char* what);
  mutable std::mutex mutex_;
  std::map<std::string, i64> counts_;
};

}  // namespace hetermoe
