#pragma once
#include <algorithm>
#include <array>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/fields.h"
#include "hetermoe/plan/plan.h"

namespace hetermoe {

/// Every kind of op, with its name. Texts, files and hashes have the names: the order may change. A kind
/// needs its row (op_rows::NAME, ops/op_row.h) and what executes it (exec_ops::NAME, exec/ops): without one
/// of these, nothing links.
#define HM_OP_KINDS(X)              \
  X(kEmbed, embed)                  \
  X(kProject, project)              \
  X(kToHeads, to_heads)             \
  X(kScores, scores)                \
  X(kToTokens, to_tokens)           \
  X(kAttention, attention)          \
  X(kDispatch, dispatch)            \
  X(kExperts, experts)              \
  X(kCombine, combine)              \
  X(kMerge, merge)                  \
  X(kMove, move)                    \
  X(kHead, head)                    \
  X(kBalance, balance)              \
  X(kReduce, reduce)                \
  X(kReduceScatter, reduce_scatter) \
  X(kNorm, norm)                    \
  X(kUpdate, update)                \
  X(kPublish, publish)              \
  X(kTake, take)                    \
  X(kAllGather, all_gather)         \
  X(kFetch, fetch)                  \
  X(kStore, store)                  \
  X(kMigrate, migrate)              \
  X(kTally, tally)                  \
  X(kLend, lend)                    \
  X(kSettle, settle)

enum class OpKind : std::uint8_t {
#define HM_KIND(kind, name) kind,
  HM_OP_KINDS(HM_KIND)
#undef HM_KIND
};
inline constexpr i32 kNumOpKinds = kEnumCount<OpKind>;

/// kRecompute repeats a forward op inside the backward pass (Recompute::kResend, kAhead). kWeights: gradients
/// of weights, where backward computes those of inputs alone (WeightGradients::kAfter).
enum class Phase : std::uint8_t { kForward, kBackward, kRecompute, kWeights };
/// kToDevice and kToHost are the two directions of the link between a device and its host.
enum class Queue : std::uint8_t {
  kCompute,
  kToExpert,
  kToAttention,
  kMove,
  kReduce,
  kGuests,
  kMoveBack,
  kMoveSaved,
  kSequence,
  kToDevice,
  kToHost
};
inline constexpr i32 kNumQueues = kEnumCount<Queue>;

/// Queues in the order of drawing, of texts and of files. Their numbers may change, this order may only grow.
inline constexpr std::array<Queue, kNumQueues> kQueueOrder = {
    Queue::kCompute,  Queue::kToExpert,  Queue::kToAttention, Queue::kMove,
    Queue::kReduce,   Queue::kToDevice,  Queue::kToHost,      Queue::kGuests,
    Queue::kMoveBack, Queue::kMoveSaved, Queue::kSequence};

template <>
struct EnumNames<OpKind> {
  static const std::vector<std::string>& names();
};
template <>
struct EnumNames<Phase> {
  static const std::vector<std::string>& names();
};  // F B R W
template <>
struct EnumNames<Queue> {
  static const std::vector<std::string>& names();
};

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
  std::int16_t team = -1;   ///< of transfers inside a team: its number in the row of shares
  i32 layer = -1;           ///< move: the layer whose input moves (num_layers = the head's)
  i32 microbatch = -1;      ///< balance: the last of its set, in group `group`
  i32 state = -1;           ///< of kinds with has_state: index into Schedule::states; see is_saved_copy()
  i32 device = -1;          ///< fetch, store: the device; the other participant is its host
  std::int16_t slot = -1;   ///< of what visits the device: where it lies, or will; else -1
  std::int16_t saved = -1;  ///< of compute ops: the slot of the saved activations that they make or use
  bool operator==(const Op&) const = default;
};
/// The lane on which an op of that queue runs at a place where it takes part.
inline LaneId lane_of(const Op& op, PlaceId place, Queue queue) {
  return lane_of(place, queue, op.device >= 0 && place != op.device ? op.device % kHostLinks : 0);
}

}  // namespace hetermoe
