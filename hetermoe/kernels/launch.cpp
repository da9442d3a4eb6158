#include "hetermoe/kernels/launch.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <iostream>
#include <mutex>
#include <numeric>
#include <set>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/device/accelerator.h"
#include "hetermoe/kernels/cuda_driver.h"
#include "hetermoe/kernels/kernel_code.h"
#include "hetermoe/kernels/made_once.h"
#include "hetermoe/kernels/nvrtc.h"

namespace hetermoe::kernels {
namespace {

std::mutex warnings_mutex;
std::set<std::string> warnings;

void warn(const std::string& sentence) {
  const std::lock_guard lock(warnings_mutex);
  if (warnings.insert(sentence).second) std::cerr << "[kernels] " << sentence << std::endl;
}

/// The kernel in the memory of a GPU. Threads that want the same one wait for its compilation; kernels that
/// are loaded already are launched meanwhile.
CudaFunction cuda_function(const Kernel& kernel, c10::Device device) {
  static MadeOnce<std::pair<const Kernel*, c10::DeviceIndex>, CudaFunction> functions;
  return functions.get({&kernel, device.index()}, [&] {
    const CachedCode found = kernel_code(kernel, compute_capability(device));
    if (!found.warning.empty()) warn(found.warning);
    return load_cuda_function(device, found.code, kernel.entry());
  });
}

std::mutex recorders_mutex;
std::set<LaunchRecorder*> recorders;
std::atomic<int> num_recorders = 0;

}  // namespace

std::string kernels_missing(c10::Device device) {
  if (!device.is_cuda()) return HostKernels::on() ? "" : "kernels of our own are for CUDA devices";
  if (!nvrtc_missing().empty()) return nvrtc_missing();
  if (cuda_driver_version() == 0)
    return "the CUDA driver (libcuda.so.1) cannot be used, so GPUs use libtorch's kernels: install a newer "
           "driver";
  const int capability = compute_capability(device);
  if (code_target(capability).architecture == 0)
    return fmt::format(
        "{} compiles none of our kernels for compute capability {}.{}, so this GPU uses libtorch's: ours "
        "need 7.0, and below 7.5 an NVRTC of CUDA 12",
        nvrtc_description(), capability / 10, capability % 10);
  return "";
}

bool has_kernels(c10::Device device) {
  if (!device.is_cuda()) return HostKernels::on();
  constexpr std::size_t kMostGpus = 64;
  static std::array<std::atomic<int>, kMostGpus> known{};  // 0 = not asked, 1 = yes, 2 = no
  const std::size_t index = idx(std::max<int>(0, device.index()));
  if (index >= kMostGpus) return kernels_missing(device).empty();
  if (known[index] == 0) {
    const std::string why_not = kernels_missing(device);
    if (!why_not.empty()) warn(why_not);
    known[index] = why_not.empty() ? 1 : 2;
  }
  return known[index] == 1;
}

i32 threads_for(i64 steps) {
  constexpr i64 kWarp = 32, kMost = 256;
  return static_cast<i32>(std::clamp((steps + kWarp - 1) / kWarp * kWarp, kWarp, kMost));
}

i64 warps_per_block(i32 threads, c10::Device device) {
  return !device.is_cuda() ? HostKernels::threads_per_block() : threads / 32;
}

i64 blocks_for(i64 pieces) { return std::min<i64>(pieces, 1 << 20); }

void record_launch(std::string_view function) {
  if (num_recorders == 0) return;
  const std::lock_guard lock(recorders_mutex);
  for (LaunchRecorder* const recorder : recorders) {
    const auto found = recorder->counts_.find(function);
    if (found == recorder->counts_.end())
      recorder->counts_.emplace(function, 1);
    else
      ++found->second;
  }
}

void launch_untyped(std::string_view function, std::initializer_list<at::ScalarType> types, const Grid& grid,
                    const std::type_info& argument_type, const void* arguments, c10::Device device) {
  const Kernel& kernel = find_kernel(function, types);
  HM_CHECK(argument_type == *kernel.argument_type, "{} takes {}", kernel.name(), kernel.arguments);
  HM_CHECK(grid.threads > 0 && grid.threads <= kMostThreads && grid.threads % 32 == 0,
           "{} in blocks of {} threads", kernel.name(), grid.threads);
  if (grid.blocks == 0) return;
  record_launch(function);
  if (!device.is_cuda()) {
    HM_CHECK(HostKernels::on(), "{} on {}", kernel.name(), device.str());
    run_on_host(kernel, grid.blocks, HostKernels::threads_per_block(), grid.shared_bytes, arguments);
  } else {
    launch_cuda_function(device, cuda_function(kernel, device),
                         {grid.blocks, grid.threads, grid.shared_bytes}, arguments);
  }
}

LaunchRecorder::LaunchRecorder() {
  const std::lock_guard lock(recorders_mutex);
  recorders.insert(this);
  ++num_recorders;
}

LaunchRecorder::~LaunchRecorder() {
  const std::lock_guard lock(recorders_mutex);
  recorders.erase(this);
  --num_recorders;
}

std::map<std::string, i64> LaunchRecorder::counts() const {
  const std::lock_guard lock(recorders_mutex);
  return {counts_.begin(), counts_.end()};
}

i64 LaunchRecorder::total() const {
  const std::lock_guard lock(recorders_mutex);
  return std::accumulate(counts_.begin(), counts_.end(), i64{0},
                         [](i64 sum, const auto& entry) { return sum + entry.second; });
}

std::vector<std::string> kernel_warnings() {
  const std::lock_guard lock(warnings_mutex);
  return {warnings.begin(), warnings.end()};
}

}  // namespace hetermoe::kernels
