#pragma once
#include <string>
#include <vector>

// NVIDIA's run-time compiler. It comes with the torch wheel and is opened at the first use, so no CUDA
// toolkit is needed.
namespace hetermoe::kernels {

/// Why kernels cannot be compiled here, in a sentence; empty = they can. HETERMOE_NVRTC names another
/// library, or "off": then operations go through libtorch's own kernels. It is read once, at the first call.
const std::string& nvrtc_missing();
/// "NVRTC 13.0 (/path/libnvrtc.so.13)", or nvrtc_missing().
std::string nvrtc_description();

/// The kind of code that NVRTC compiles for a GPU of a compute capability (90 for 9.0).
struct CodeTarget {
  int architecture = 0;        ///< 0: nothing that it could compile runs there
  bool by_driver = false;      ///< PTX, which the driver compiles: the GPU is newer than NVRTC
  std::string option() const;  ///< "--gpu-architecture=sm_90"
};
CodeTarget code_target(int capability);
/// The same for given architectures that a compiler knows.
CodeTarget code_target(int capability, const std::vector<int>& known);

struct Compiled {
  std::string code;  ///< cubin or PTX
  std::string log;   ///< the compiler's words
};
/// Compiles a program; its includes are source_texts(). Throws InternalError with the compiler's words when
/// it finds a fault. NVRTC must be there. Any number of threads may compile at once.
Compiled compile_cuda(const std::string& program, const CodeTarget& target,
                      const std::vector<std::string>& more_options = {});
/// All that decides what compile_cuda() makes of a program, besides the program and its target.
std::string compiler_identity();

}  // namespace hetermoe::kernels
