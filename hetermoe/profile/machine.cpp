#include "hetermoe/profile/machine.h"

#include <fmt/format.h>
#include <torch/headeronly/version.h>

#include <algorithm>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <vector>

namespace hetermoe {
namespace {

/// The value of the first line "key : value" of a file.
std::string value_of(const std::filesystem::path& path, const std::string& key) {
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    const std::size_t colon = line.find(':');
    if (!line.starts_with(key) || colon == std::string::npos) continue;
    const std::size_t begin = line.find_first_not_of(" \t", colon + 1);
    if (begin != std::string::npos) return line.substr(begin);
  }
  return "unknown";
}

}  // namespace

std::string device_name(const at::Device& device) {
  if (device.is_cpu()) return value_of("/proc/cpuinfo", "model name");
  std::vector<std::filesystem::path> gpus;
  std::error_code code;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/driver/nvidia/gpus", code))
    gpus.push_back(entry.path());
  std::sort(gpus.begin(), gpus.end());
  const auto index = static_cast<std::size_t>(device.has_index() ? device.index() : 0);
  return device.is_cuda() && index < gpus.size() ? value_of(gpus[index] / "information", "Model") : "unknown";
}

std::string utc_date() {
  const std::time_t now = std::time(nullptr);
  std::tm utc{};
  gmtime_r(&now, &utc);
  char text[32];
  return std::string(text, std::strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%SZ", &utc));
}

std::string torch_version() { return TORCH_VERSION; }

std::string compiler_version() {
#if defined(__clang__)
  return fmt::format("clang {}", __clang_version__);
#else
  return fmt::format("gcc {}", __VERSION__);
#endif
}

}  // namespace hetermoe
