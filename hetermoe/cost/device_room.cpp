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
  return fmt::format("device {} ({:.0f} GiB, {:.1f} usable) needs {:.1f} GiB", cluster.device_name(worst),
                     cluster.type_of(worst).memory_gib, usable_memory(cluster.type_of(worst)) / kGiB,
                     memory[idx(worst)] / kGiB);
}

}  // namespace hetermoe
