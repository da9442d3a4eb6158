#pragma once
#include <ATen/ATen.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <typeinfo>
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/kernels/source_text.h"

// All kernels: what the host can run, and the texts that NVRTC compiles.
namespace hetermoe::kernels {

/// A function of one of the sources, with the elements it works on.
struct Kernel {
  std::string_view function;            ///< "swiglu_forward"
  std::string_view source;              ///< "hetermoe/kernels/swiglu.cu"
  std::string_view arguments;           ///< its one parameter: "SwigluForward"
  std::vector<at::ScalarType> types;    ///< of its template parameters
  const std::type_info* argument_type;  ///< the same as `arguments`
  std::size_t argument_bytes;
  void (*on_host)(const void* arguments);  ///< for the thread that host_block() describes

  std::string name() const;   ///< "swiglu_forward<Bf16>"
  std::string entry() const;  ///< "hm_swiglu_forward_bf16": its name in compiled code and in profilers
};

const std::vector<Kernel>& all_kernels();
bool has_kernel(std::string_view function, std::span<const at::ScalarType> types);
/// Throws InternalError when there is none.
const Kernel& find_kernel(std::string_view function, std::span<const at::ScalarType> types);

/// Threads that a block of any kernel has at most, and blocks that find registers on a multiprocessor at
/// once: more make some kernels keep numbers in memory.
inline constexpr i32 kMostThreads = 256, kBlocksAtOnce = 3;

/// A program for NVRTC with the entry of each kernel; all are of one source.
std::string cuda_program(std::span<const Kernel* const> kernels);

}  // namespace hetermoe::kernels
