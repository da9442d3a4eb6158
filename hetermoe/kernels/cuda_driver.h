#pragma once
#include <c10/core/Device.h>

#include <string>

#include "hetermoe/base/types.h"

// The few functions of the CUDA driver that kernels of our own need. libcuda.so.1 is opened at run time.
namespace hetermoe::kernels {

/// A kernel in the memory of a GPU; never unloaded.
using CudaFunction = void*;

/// 13000 for CUDA 13.0; 0 without a driver.
int cuda_driver_version();

/// Loads code that was compiled for the GPU (a cubin) or that the driver compiles (PTX text). Throws
/// DeviceError with the driver's words.
CudaFunction load_cuda_function(c10::Device device, const std::string& code, const std::string& entry);

struct CudaGrid {
  i64 num_blocks = 0;
  i32 num_threads = 0;
  i64 shared_bytes = 0;
};
/// Enqueues on the calling thread's stream of the device and returns. Throws DeviceError.
void launch_cuda_function(c10::Device device, CudaFunction function, const CudaGrid& grid,
                          const void* arguments);

}  // namespace hetermoe::kernels
