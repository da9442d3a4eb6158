#pragma once
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// The tag of each channel: a queue between a device of one process and a device of another. MPI matches
/// messages by sender process and tag, so devices are counted within their processes: tags stay small however
/// many processes there are.
class MpiTags {
 public:
  /// rank_of: [num_devices], kNoRank = idle. largest: what MPI allows (MPI_TAG_UB). Throws TransportError
  /// when that is not enough.
  MpiTags(const std::vector<i32>& rank_of, i64 largest);
  int of(i32 queue, DeviceId from, DeviceId to) const;

 private:
  std::vector<i32> index_;  ///< [num_devices] of the device among those of its process
  i64 most_ = 1;            ///< devices of a process
};

}  // namespace hetermoe
