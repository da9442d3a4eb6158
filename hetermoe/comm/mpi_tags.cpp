#include "hetermoe/comm/mpi_tags.h"

#include <algorithm>
#include <map>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/comm/transport.h"
#include "hetermoe/ops/op_row.h"

namespace hetermoe {

MpiTags::MpiTags(const std::vector<i32>& rank_of, i64 largest) {
  std::map<i32, i32> num_devices;
  for (const i32 rank : rank_of) {
    index_.push_back(rank == kNoRank ? 0 : num_devices[rank]++);
    most_ = std::max<i64>(most_, index_.back() + 1);
  }
  const i64 needed = kNumQueues * most_ * most_ - 1;
  if (needed > largest) {
    fail<TransportError>("mpi",
                         "{} devices in one process need tags up to {}, this MPI has tags up to {}: start "
                         "more processes, so that each has fewer devices",
                         most_, needed, largest);
  }
}

int MpiTags::of(i32 queue, DeviceId from, DeviceId to) const {
  return static_cast<int>((queue * most_ + index_[idx(from)]) * most_ + index_[idx(to)]);
}

}  // namespace hetermoe
