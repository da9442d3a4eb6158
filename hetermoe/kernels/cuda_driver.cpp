#include "hetermoe/kernels/cuda_driver.h"

#include <dlfcn.h>

#include <array>
#include <mutex>
#include <vector>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/device/accelerator.h"

namespace hetermoe::kernels {
namespace {

using Result = int;  // 0 = success
using Context = void*;
using Module = void*;
using Stream = void*;
using Gpu = int;

/// The driver's functions, opened once and never closed.
class Driver {
 public:
  Driver() : handle_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL)) {
    if (handle_ == nullptr) return;
    find(init, "cuInit"), find(get_version, "cuDriverGetVersion"), find(get_error, "cuGetErrorString");
    find(get_device, "cuDeviceGet"), find(retain_context, "cuDevicePrimaryCtxRetain");
    find(get_context, "cuCtxGetCurrent"), find(set_context, "cuCtxSetCurrent");
    find(load_module, "cuModuleLoadData"), find(get_function, "cuModuleGetFunction");
    find(launch, "cuLaunchKernel");
    if (complete_) complete_ = init(0) == 0;
  }
  bool complete() const { return handle_ != nullptr && complete_; }
  void check(Result result, const char* call) const {
    if (result == 0) return;
    const char* words = nullptr;
    get_error(result, &words);
    fail<DeviceError>("kernels", "{} failed: {} (CUDA error {})", call, words ? words : "no words for it",
                      result);
  }

  Result (*init)(unsigned flags) = nullptr;
  Result (*get_version)(int* version) = nullptr;
  Result (*get_error)(Result error, const char** text) = nullptr;
  Result (*get_device)(Gpu* gpu, int ordinal) = nullptr;
  Result (*retain_context)(Context* context, Gpu gpu) = nullptr;
  Result (*get_context)(Context* context) = nullptr;
  Result (*set_context)(Context context) = nullptr;
  Result (*load_module)(Module* module, const void* image) = nullptr;
  Result (*get_function)(CudaFunction* function, Module module, const char* name) = nullptr;
  Result (*launch)(CudaFunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned shared_bytes, Stream stream,
                   void** parameters, void** extra) = nullptr;

 private:
  template <class Function>
  void find(Function& function, const char* name) {
    function = reinterpret_cast<Function>(dlsym(handle_, name));
    complete_ = complete_ && function != nullptr;
  }

  void* handle_;
  bool complete_ = true;
};

const Driver& driver() {
  static const Driver opened;
  return opened;
}

/// The context that libtorch uses on a GPU.
Context context_of(c10::Device device) {
  static std::mutex mutex;
  static std::vector<Context> contexts;
  const std::lock_guard lock(mutex);
  if (contexts.size() <= idx(device.index())) contexts.resize(idx(device.index()) + 1, nullptr);
  Context& context = contexts[idx(device.index())];
  if (context == nullptr) {
    Gpu gpu = 0;
    driver().check(driver().get_device(&gpu, device.index()), "cuDeviceGet");
    driver().check(driver().retain_context(&context, gpu), "cuDevicePrimaryCtxRetain");
  }
  return context;
}

/// The calling thread talks to this GPU while the object lives.
class OnGpu {
 public:
  explicit OnGpu(c10::Device device) {
    HM_CHECK(driver().complete(), "there is no CUDA driver");
    const Context wanted = context_of(device);
    driver().check(driver().get_context(&before_), "cuCtxGetCurrent");
    changed_ = before_ != wanted;
    if (changed_) driver().check(driver().set_context(wanted), "cuCtxSetCurrent");
  }
  ~OnGpu() {
    if (changed_) driver().set_context(before_);
  }
  OnGpu(const OnGpu&) = delete;
  OnGpu& operator=(const OnGpu&) = delete;

 private:
  Context before_ = nullptr;
  bool changed_ = false;
};

}  // namespace

int cuda_driver_version() {
  int version = 0;
  return driver().complete() && driver().get_version(&version) == 0 ? version : 0;
}

CudaFunction load_cuda_function(c10::Device device, const std::string& code, const std::string& entry) {
  const OnGpu on_gpu(device);
  Module module = nullptr;
  driver().check(driver().load_module(&module, code.c_str()), "cuModuleLoadData");
  CudaFunction function = nullptr;
  driver().check(driver().get_function(&function, module, entry.c_str()), "cuModuleGetFunction");
  return function;
}

void launch_cuda_function(c10::Device device, CudaFunction function, const CudaGrid& grid,
                          const void* arguments) {
  const OnGpu on_gpu(device);
  std::array<void*, 1> parameters = {const_cast<void*>(arguments)};
  driver().check(
      driver().launch(function, static_cast<unsigned>(grid.num_blocks), 1, 1,
                      static_cast<unsigned>(grid.num_threads), 1, 1, static_cast<unsigned>(grid.shared_bytes),
                      stream_handle(device), parameters.data(), nullptr),
      "cuLaunchKernel");
}

}  // namespace hetermoe::kernels
