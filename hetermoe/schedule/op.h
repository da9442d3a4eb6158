#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/fields.h"
#include "hetermoe/base/types.h"

namespace hetermoe {

enum class OpKind : std::uint8_t {
  kEmbed,
  kAttention,
  kDispatch,
  kExperts,
  kCombine,
  kMerge,
  kMove,
  kHead,
  kBalance,
  kReduce,
  kNorm,
  kUpdate
};
/// kRecompute repeats a forward op inside the backward pass (Recompute::kResend).
enum class Phase : std::uint8_t { kForward, kBackward, kRecompute };
enum class Queue : std::uint8_t { kCompute, kToExpert, kToAttention, kMove, kReduce };
inline constexpr i32 kNumQueues = 5;

template <>
struct EnumNames<OpKind> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<Phase> {
  static const std::vector<std::string>& names();
};  // F B R
template <>
struct EnumNames<Queue> {
  static const std::vector<std::string>& names();
};

/// A lane is a queue of a device.
using LaneId = i32;
inline LaneId lane_of(DeviceId device, Queue queue) { return device * kNumQueues + static_cast<i32>(queue); }
inline DeviceId device_of(LaneId lane) { return lane / kNumQueues; }
inline Queue queue_of(LaneId lane) { return static_cast<Queue>(lane % kNumQueues); }

struct Op {
  OpKind kind = OpKind::kEmbed;
  Phase phase = Phase::kForward;
  std::int16_t chunk = 0;
  std::int16_t group = 0;
  i32 layer = -1;       ///< move: the layer whose input moves (num_layers = the head's)
  i32 microbatch = -1;  ///< balance: the last of its set, in group `group`
  i32 state = -1;       ///< reduce, update: index into Schedule::states
  bool operator==(const Op&) const = default;
};

/// Compute ops occupy one compute lane; all others are transfers with a lane on every participant.
inline bool is_compute(OpKind kind) {
  switch (kind) {
    case OpKind::kEmbed:
    case OpKind::kAttention:
    case OpKind::kExperts:
    case OpKind::kMerge:
    case OpKind::kHead:
    case OpKind::kUpdate:
      return true;
    default:
      return false;
  }
}

/// "attention.F l2 m0", "dispatch.B l0 m1 c2", "reduce s3".
std::string to_string(const Op& op);

}  // namespace hetermoe
