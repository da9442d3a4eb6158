#pragma once
#include <span>
#include <vector>

#include "hetermoe/ops/buffers.h"
#include "hetermoe/schedule/schedule.h"

namespace hetermoe {

/// One life of a buffer: from its first writer to the last of its readers.
struct Epoch {
  BufferKey key;
  DeviceId device;
  OpId first;   ///< in append order
  i32 num_ops;  ///< ops that touch it; when so many have ended, it is free
};

/// All epochs of a schedule and the ops that touch them. Buffers that outlive the step have none.
struct Lifetimes {
  std::vector<Epoch> epochs;
  std::vector<i64> use_begin = {
      0};                 ///< [lanes of the schedule + 1] into `uses`, by position in Schedule::lanes
  std::vector<i32> uses;  ///< epochs that the op touches on the lane's device

  /// Epochs that an op touches on the device of its lane number `lane` (0 for a compute op).
  std::span<const i32> uses_of(const Schedule& schedule, OpId op, std::size_t lane) const {
    const std::size_t i = static_cast<std::size_t>(schedule.lane_begin[static_cast<std::size_t>(op)]) + lane;
    return {uses.data() + use_begin[i], uses.data() + use_begin[i + 1]};
  }
};

Lifetimes make_lifetimes(const Schedule& schedule, const Placement& placement);

}  // namespace hetermoe
