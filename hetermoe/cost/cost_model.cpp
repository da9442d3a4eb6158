#include "hetermoe/cost/cost_model.h"

#include <algorithm>

namespace hetermoe {

i32 num_ports(const Cluster& cluster) {
  return 5 * static_cast<i32>(cluster.nodes.size()) + 4 * cluster.num_devices();
}

Seconds TransferCost::seconds() const {
  Seconds busiest = 0;
  for (const PortLoad& load : loads) busiest = std::max(busiest, load.seconds);
  return latency + busiest;
}

}  // namespace hetermoe
