#pragma once
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/device/gpu_support.h"

// GPUs by way of libtorch's own interfaces: nothing of CUDA is needed to compile or to link. libtorch's CUDA
// library is opened at run time, so that one program runs with GPUs and without.
namespace hetermoe {

/// Opens libtorch's CUDA library, once. Returns why that failed; empty = it is open. GPUs get 32 hardware
/// queues unless CUDA_DEVICE_MAX_CONNECTIONS is set.
const std::string& open_cuda();

/// GPUs that this process may use; 0 without a driver or without libtorch's CUDA library.
int num_cuda_devices();

/// Why the driver cannot serve libtorch's CUDA library; empty = it can, or neither is there.
std::string why_no_gpu();

/// The device of "cpu", "cuda" or "cuda:N". Throws ConfigError at `where` when there is no such device, with
/// the reason.
c10::Device find_device(const std::string& name, const std::string& where);

/// As find_device(), but "cuda" is every GPU in turn: the one for the n-th of those who share them.
c10::Device find_device_in_turn(const std::string& name, i64 n, const std::string& where);

/// Compute capability of a GPU as a number, 90 for 9.0. 0 on a CPU.
int compute_capability(c10::Device device);

/// The architectures for which libtorch's CUDA library was compiled; empty where that is not known.
std::vector<int> library_architectures();

/// Settings of libtorch's GPU library, for the whole process.
struct GpuSettings {
  bool tf32 = false;  ///< products of fp32 matrices are computed with 10 bits of each factor's mantissa
  /// libtorch takes kernels that add up in one order, or throws where an operator has none.
  bool deterministic = false;
  bool fp64 = false;  ///< some device computes in fp64, for which attention has no fused kernel
  /// The allocator grows blocks instead of adding blocks that later requests do not fit into.
  bool expandable_segments = true;
};
/// To be called before the first tensor is made on a GPU. Changes nothing on CPUs. Products of 16-bit
/// matrices add up in fp32, whatever the settings.
void configure_gpus(const GpuSettings& settings);

/// Products of 16-bit matrices on GPUs add up in fp32, also where the library splits a sum. find_device()
/// calls it when a run asks for a GPU; it changes nothing on CPUs.
void use_wide_gpu_sums();

/// The most bytes of tensors that were alive at once on a GPU since the process began or since
/// restart_gpu_peak(); 0 on a CPU.
Bytes gpu_peak(c10::Device device);
void restart_gpu_peak(c10::Device device);
/// Facts of a GPU.
GpuFacts gpu_facts(c10::Device device);
/// Of all that this process may use, by their numbers.
std::vector<GpuFacts> gpus_here();
/// The driver's name of a GPU, "NVIDIA A40"; "CPU" on a CPU, empty when the driver has none.
std::string gpu_name(c10::Device device);
/// All memory of a GPU; 0 on a CPU or when the driver does not say.
Bytes gpu_memory(c10::Device device);
/// What this process may still take of it: what the driver has left, other processes and the contexts of CUDA
/// aside, and what the allocator keeps for tensors to come. 0 as above.
Bytes free_gpu_memory(c10::Device device);

/// The calling thread's stream on a device as its own library knows it (cudaStream_t); null on a CPU.
void* stream_handle(c10::Device device);
/// Whether all that this thread launched on the device has ended. Throws what a kernel met.
bool stream_has_ended(c10::Device device);
/// Waits until it has.
void finish_stream(c10::Device device);

/// The stream of a thread that works for a GPU: what this thread launches while the object lives goes to a
/// stream of its own, of those that the GPU prefers if it `comes_first`. On a CPU nothing.
class OwnStream {
 public:
  explicit OwnStream(c10::Device device, bool comes_first = false);
  ~OwnStream();
  OwnStream(const OwnStream&) = delete;
  OwnStream& operator=(const OwnStream&) = delete;

 private:
  std::optional<c10::Stream> own_, before_;
  c10::Device device_before_;
};

}  // namespace hetermoe
