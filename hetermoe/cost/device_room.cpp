#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/cost/memory_estimate.h"

// What devices have room for.
namespace hetermoe {

Bytes usable_memory(const DeviceType& type) {
  return kUsableMemory * std::max(0.0, type.memory_bytes() - kReservedMemory);
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
  // Of small memories, 0.0 GiB would say nothing.
  const int digits = type.memory_gib < 2 ? 3 : 1;
  const Bytes usable = usable_memory(type);
  return fmt::format("device {} ({:.{}f} GiB, {} usable) needs {:.{}f} GiB", cluster.device_name(worst),
                     type.memory_gib, digits > 1 ? digits : 0,
                     usable > 0 ? fmt::format("{:.{}f}", usable / kGiB, digits)
                                : fmt::format("{:.0f} GiB of them reserved: none", kReservedMemory / kGiB),
                     memory[idx(worst)] / kGiB, digits);
}

}  // namespace hetermoe
