#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

// Checks of a GPU by numbers alone: whether libtorch has code for it, whether the driver is new enough. Pure
// functions of the driver's figures, so that every case is tested without a GPU.
namespace hetermoe {

/// A GPU as its driver describes it.
struct GpuFacts {
  std::string id;      ///< "cuda:0"
  std::string name;    ///< "NVIDIA A40", empty where the driver does not say
  int capability = 0;  ///< 86 for 8.6, 0 = not known
  Bytes memory = 0;    ///< 0 = not known
};

/// Whether code that was compiled for these architectures (90 for sm_90) runs on a GPU of this compute
/// capability: it runs on GPUs of the same major version whose minor one is not lower.
bool has_code_for(int capability, const std::vector<int>& architectures);

/// The architectures of PyTorch's own wheels of 2.11 for a version of CUDA's runtime (13000, 12060); empty
/// where that is not known.
std::vector<int> wheel_architectures(int runtime_version);

/// Why a GPU cannot be used with a library that has code for these architectures, and which wheel to take;
/// empty = it can, or nothing is known of either.
std::string no_code_for(const GpuFacts& gpu, const std::vector<int>& architectures);

/// Why a driver, which supports CUDA up to `driver_version`, cannot serve this runtime (both as CUDA writes
/// them, 13000 for 13.0), and what to do; empty = it can. Versions of 0 are not known and say nothing. Minor
/// versions of one major version serve each other.
std::string driver_too_old(int driver_version, int runtime_version);

/// "9.0" for 90.
std::string capability_text(int capability);

}  // namespace hetermoe
