#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"

// What devices have room for.
namespace hetermoe {

Bytes usable_memory(const DeviceType& type) {
  return kUsableMemory * std::max(0.0, type.memory_bytes() - kReservedMemory);
}

std::string memory_text(Bytes bytes) {
  return bytes < kGiB ? fmt::format("{:.3g} MiB", bytes / kGiB * 1024)
                      : fmt::format("{:.1f} GiB", bytes / kGiB);
}

std::string room_text(const DeviceType& type, Bytes usable, Bytes kept_free) {
  const std::string all =
      type.memory_gib < 2 ? memory_text(type.memory_bytes()) : fmt::format("{:.0f} GiB", type.memory_gib);
  return usable > 0 ? fmt::format("({}, {} usable)", all, memory_text(usable))
                    : fmt::format("({}, none usable: {} are reserved)", all,
                                  memory_text(kReservedMemory + kept_free));
}

std::string overfilled_device(const std::vector<Bytes>& memory, const Cluster& cluster) {
  DeviceId worst = -1;
  double excess = 1;
  for (DeviceId d = 0; d < cluster.num_devices(); ++d) {
    const double filled = memory[idx(d)] / usable_memory(cluster.type_of(d));
    if (filled > excess) worst = d, excess = filled;
  }
  if (worst < 0) return "";
  const DeviceType& type = cluster.type_of(worst);
  return fmt::format("device {} {} needs {}", cluster.device_name(worst),
                     room_text(type, usable_memory(type)), memory_text(memory[idx(worst)]));
}

}  // namespace hetermoe
