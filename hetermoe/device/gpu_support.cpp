#include "hetermoe/device/gpu_support.h"

#include <fmt/ranges.h>

#include <algorithm>

namespace hetermoe {
namespace {

constexpr int kOldestOfCuda126 = 50;

std::string named(const GpuFacts& gpu) {
  return gpu.name.empty() ? gpu.id : fmt::format("{} ({})", gpu.id, gpu.name);
}

std::string cuda_text(int version) { return fmt::format("{}.{}", version / 1000, version % 1000 / 10); }

}  // namespace

std::string capability_text(int capability) { return fmt::format("{}.{}", capability / 10, capability % 10); }

bool has_code_for(int capability, const std::vector<int>& architectures) {
  return std::any_of(architectures.begin(), architectures.end(),
                     [&](int one) { return one / 10 == capability / 10 && one <= capability; });
}

std::vector<int> wheel_architectures(int runtime_version) {
  // PyTorch's RELEASE.md, "CUDA Support Matrix" of 2.11; that of 13.0 as found in the wheel, too.
  switch (runtime_version / 10) {
    case 1206:
      return {50, 60, 70, 75, 80, 86, 90};
    case 1208:
      return {75, 80, 86, 90, 100, 120};
    default:
      return runtime_version / 1000 == 13 ? std::vector<int>{75, 80, 86, 90, 100, 120} : std::vector<int>{};
  }
}

std::string no_code_for(const GpuFacts& gpu, const std::vector<int>& architectures) {
  if (gpu.capability <= 0 || architectures.empty() || has_code_for(gpu.capability, architectures)) return "";
  const std::string what =
      fmt::format("{} cannot be used: it has compute capability {}, and this libtorch has code for {} only",
                  named(gpu), capability_text(gpu.capability), fmt::join(architectures, ", "));
  const bool is_older = gpu.capability < *std::min_element(architectures.begin(), architectures.end());
  if (!is_older) return what + ". Install a newer torch, and build again";
  if (gpu.capability < kOldestOfCuda126)
    return what + ". No wheel of this torch has code for it: take another GPU";
  return what + ". Its wheel for CUDA 12.6 goes back to 5.0: ./dev setup cu126, and build again";
}

std::string driver_too_old(int driver_version, int runtime_version) {
  if (driver_version <= 0 || runtime_version <= 0 || driver_version / 1000 >= runtime_version / 1000)
    return "";
  return fmt::format(
      "the NVIDIA driver is too old: it serves CUDA up to {}, and this libtorch needs {}. Install a newer "
      "driver, or the "
      "wheel of torch for CUDA 12.6: ./dev setup cu126, and build again",
      cuda_text(driver_version), cuda_text(runtime_version));
}

}  // namespace hetermoe
