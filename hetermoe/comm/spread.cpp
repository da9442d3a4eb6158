#include "hetermoe/base/error.h"
#include "hetermoe/base/words.h"
#include "hetermoe/comm/mpi.h"

namespace hetermoe {

std::vector<i32> spread_devices(i32 num_devices, i32 num_ranks) {
  if (num_ranks > num_devices) {
    fail<ConfigError>("mpi", "{} for {}: every process needs a device. Start with -np {}",
                      counted(num_ranks, "process"), counted(num_devices, "device"), num_devices);
  }
  std::vector<i32> rank_of;
  for (i32 d = 0; d < num_devices; ++d) rank_of.push_back(static_cast<i32>(i64{d} * num_ranks / num_devices));
  return rank_of;
}

}  // namespace hetermoe
