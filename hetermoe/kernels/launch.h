#pragma once
#include <ATen/ATen.h>

#include <initializer_list>
#include <map>
#include <string>
#include <string_view>
#include <typeinfo>

#include "hetermoe/base/types.h"
#include "hetermoe/kernels/host_kernels.h"

// How the operations of nn start kernels of our own, on a GPU or, in tests, on the host.
namespace hetermoe::kernels {

/// Why a device runs no kernels of our own, in a sentence for doctor and the log; empty = it does. Reasons on
/// a GPU: no NVRTC, no driver, or NVRTC has no code that runs there. A CPU runs kernels while HostKernels is
/// on.
std::string kernels_missing(c10::Device device);
/// kernels_missing(device).empty(), remembered per device. May be called by any thread.
bool has_kernels(c10::Device device);

/// Blocks, threads of each (a multiple of 32 up to kMostThreads) and bytes that the threads of a block share.
struct Grid {
  i64 blocks = 0;
  i32 threads = 256;
  i64 shared_bytes = 0;
};
/// Threads for rows that are so many steps of work wide.
i32 threads_for(i64 steps);
/// Warps of a block as WarpTeam has them on this device.
i64 warps_per_block(i32 threads, c10::Device device);
/// Blocks for so many independent pieces of work: all of them up to what keeps any GPU busy.
i64 blocks_for(i64 pieces);

/// Enqueues a kernel on the calling thread's stream of the device; on a CPU runs it and returns when it has
/// ended. The tensors that the arguments point to must outlive the kernel, as with every stream. A grid
/// without blocks does nothing. The first launch of a kernel compiles it or takes it from the cache. Throws
/// DeviceError. May be called by any thread.
void launch_untyped(std::string_view function, std::initializer_list<at::ScalarType> types, const Grid& grid,
                    const std::type_info& argument_type, const void* arguments, c10::Device device);
template <class Arguments>
void launch(std::string_view function, std::initializer_list<at::ScalarType> types, const Grid& grid,
            const Arguments& arguments, c10::Device device) {
  launch_untyped(function, types, grid, typeid(Arguments), &arguments, device);
}

/// Counts the launches of all threads while it lives, by the name of the function ("swiglu_forward"). Any
/// number may live at once. counts() may be called at any time, by any thread.
class LaunchRecorder {
 public:
  LaunchRecorder();
  ~LaunchRecorder();
  LaunchRecorder(const LaunchRecorder&) = delete;
  LaunchRecorder& operator=(const LaunchRecorder&) = delete;
  std::map<std::string, i64> counts() const;
  i64 total() const;

 private:
  friend void record_launch(std::string_view function);
  std::map<std::string, i64, std::less<>> counts_;
};

/// Warnings of the cache since the process began, one sentence each; also written to stderr.
std::vector<std::string> kernel_warnings();

}  // namespace hetermoe::kernels
