#include "hetermoe/cost/cost_model.h"

#include <algorithm>

namespace hetermoe {

Seconds TransferCost::seconds() const {
  Seconds busiest = 0;
  for (const PortLoad& load : loads) busiest = std::max(busiest, load.seconds);
  return latency + busiest;
}

}  // namespace hetermoe
