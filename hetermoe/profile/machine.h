#pragma once
#include <ATen/ATen.h>

#include <string>

namespace hetermoe {

/// Name of the processor from /proc/cpuinfo, or of an NVIDIA GPU from its driver's files; "unknown" if
/// neither has it. GPUs are counted in the order of their bus addresses.
std::string device_name(const at::Device& device);
std::string utc_date();  ///< "2025-01-31T12:00:00Z"
std::string torch_version();
std::string compiler_version();

}  // namespace hetermoe
