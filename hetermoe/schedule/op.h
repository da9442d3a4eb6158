#pragma once
#include <algorithm>
#include <string>

#include "hetermoe/schedule/op_traits.h"

namespace hetermoe {

/// A lane is a queue of a place, which is a device or a host. Copies of one device must not wait for those of
/// another, so a host has kToDevice and kToHost once for each link: that of device d is d % kHostLinks.
using LaneId = i32;
inline constexpr i32 kHostLinks = 8;  ///< devices of a node beyond so many share them
inline constexpr i32 kFirstLinkQueue = static_cast<i32>(Queue::kToDevice);
inline constexpr i32 kLanesOfPlace = kNumQueues + 2 * (kHostLinks - 1);
static_assert(kFirstLinkQueue == kNumQueues - 2 && static_cast<i32>(Queue::kToHost) == kNumQueues - 1);

/// Position among the lanes of a place; those of a device are below kNumQueues.
inline i32 lane_at(LaneId lane) { return lane % kLanesOfPlace; }
inline LaneId lane_of(PlaceId place, Queue queue, i32 link = 0) {
  return place * kLanesOfPlace + static_cast<i32>(queue) + 2 * link;
}
inline PlaceId device_of(LaneId lane) { return lane / kLanesOfPlace; }
inline i32 link_of(LaneId lane) { return std::max(0, (lane_at(lane) - kFirstLinkQueue) / 2); }
inline Queue queue_of(LaneId lane) { return static_cast<Queue>(lane_at(lane) - 2 * link_of(lane)); }
/// "to_expert", "to_device", "to_device 3": the queue and, beyond the first, the link.
std::string lane_name(LaneId lane);

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
/// The lane on which an op of that queue runs at a place where it takes part.
inline LaneId lane_of(const Op& op, PlaceId place, Queue queue) {
  return lane_of(place, queue, op.device >= 0 && place != op.device ? op.device % kHostLinks : 0);
}

/// A copy between a device and its host.
inline bool is_host_copy(const Op& op) { return traits(op.kind).participants == Participants::kWithHost; }

/// Of activations that backward starts from, not of a state: those of a layer and microbatch on the device.
/// Its chunk is their piece: 0 = the input of the layer, c + 1 = the rows of the experts in chunk c.
inline bool is_saved_copy(const Op& op) { return op.state < 0 && is_host_copy(op); }
/// The chunk of the exchange whose counts (Buffer::kLoad) say how much the op works on; -1 = none.
inline i32 load_chunk(const Op& op) {
  if (is_saved_copy(op)) return op.chunk - 1;
  if (is_of_guests(op.kind)) return 0;  // guests are those of all chunks
  return needs_load(op.kind) ? op.chunk : -1;
}

/// The stage whose shares a compute op follows: -1 the embedding, num_layers the head.
i32 stage_of(const Op& op, i32 num_layers);

/// "attention.F l2 m0", "dispatch.B l0 m1 c2", "reduce s3".
std::string to_string(const Op& op);

}  // namespace hetermoe
