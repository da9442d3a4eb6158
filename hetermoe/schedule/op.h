#pragma once
#include <string>

#include "hetermoe/schedule/op_traits.h"

namespace hetermoe {

/// A lane is a queue of a place, which is a device or a host.
using LaneId = i32;
inline LaneId lane_of(PlaceId place, Queue queue) { return place * kNumQueues + static_cast<i32>(queue); }
inline PlaceId device_of(LaneId lane) { return lane / kNumQueues; }
inline Queue queue_of(LaneId lane) { return static_cast<Queue>(lane % kNumQueues); }

struct Op {
  OpKind kind = OpKind::kEmbed;
  Phase phase = Phase::kForward;
  std::int16_t chunk = 0;
  std::int16_t group = 0;
  i32 layer = -1;           ///< move: the layer whose input moves (num_layers = the head's)
  i32 microbatch = -1;      ///< balance: the last of its set, in group `group`
  i32 state = -1;           ///< of kinds with has_state: index into Schedule::states; see is_saved_copy()
  i32 device = -1;          ///< fetch, store: the device; the other participant is its host
  std::int16_t slot = -1;   ///< of what visits the device: where it lies, or will; else -1
  std::int16_t saved = -1;  ///< of compute ops: the slot of the saved activations that they make or use
  bool operator==(const Op&) const = default;
};

/// Queue of an op under the plan's binding.
Queue queue_of_op(const Op& op, QueueBinding binding);

/// A copy between a device and its host.
inline bool is_host_copy(const Op& op) { return traits(op.kind).participants == Participants::kWithHost; }

/// Of activations that backward starts from, not of a state: those of a layer and microbatch on the device.
/// Its chunk is their piece: 0 = the input of the layer, c + 1 = the rows of the experts in chunk c.
inline bool is_saved_copy(const Op& op) { return op.state < 0 && is_host_copy(op); }
/// The chunk of the exchange whose counts (Buffer::kLoad) say how much the op works on; -1 = none.
inline i32 load_chunk(const Op& op) {
  if (is_saved_copy(op)) return op.chunk - 1;
  return needs_load(op.kind) ? op.chunk : -1;
}

/// The stage whose shares a compute op follows: -1 the embedding, num_layers the head.
i32 stage_of(const Op& op, i32 num_layers);

/// "attention.F l2 m0", "dispatch.B l0 m1 c2", "reduce s3".
std::string to_string(const Op& op);

}  // namespace hetermoe
