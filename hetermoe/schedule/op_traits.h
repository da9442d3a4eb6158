#pragma once
#include <array>
#include <variant>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/fields.h"
#include "hetermoe/base/index.h"
#include "hetermoe/plan/plan.h"

// The table of op kinds: what is true of every op of a kind. Other code asks the table and names kinds only
// in switches without a default branch, so that a new kind does not compile until all of them know it.
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
  kReduceScatter,
  kNorm,
  kUpdate,
  kPublish,
  kTake,
  kAllGather,
  kFetch,
  kStore,
  kMigrate,
  kTally,
  kLend,
  kSettle
};
/// The kinds that compute. A switch over these needs no word about transfers, and the reverse.
enum class ComputeKind : std::uint8_t {
  kEmbed,
  kAttention,
  kExperts,
  kMerge,
  kHead,
  kUpdate,
  kPublish,
  kTake
};
enum class TransferKind : std::uint8_t {
  kDispatch,
  kCombine,
  kMove,
  kBalance,
  kReduce,
  kReduceScatter,
  kNorm,
  kAllGather,
  kFetch,
  kStore,
  kMigrate,
  kTally,
  kLend,
  kSettle
};

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
  kToDevice,
  kToHost
};

inline constexpr i32 kNumOpKinds = kEnumCount<OpKind>;
inline constexpr i32 kNumQueues = kEnumCount<Queue>;

/// Queues in the order of drawing, of texts and of files. Their numbers may change, this order may only grow.
inline constexpr std::array<Queue, kNumQueues> kQueueOrder = {
    Queue::kCompute,  Queue::kToExpert, Queue::kToAttention, Queue::kMove,     Queue::kReduce,
    Queue::kToDevice, Queue::kToHost,   Queue::kGuests,      Queue::kMoveBack, Queue::kMoveSaved};

/// In which phases a kind occurs. kNone: its ops carry Phase::kForward, and their text names no phase.
enum class Phases : std::uint8_t { kNone, kForward, kForwardBackward, kForwardBackwardRecompute, kAll };

/// The queue of an op under each QueueBinding.
struct QueueRule {
  Queue forward, backward;                ///< kDirection; recompute counts as forward
  Queue by_name;                          ///< kName
  Queue single;                           ///< kSingle
  Queue phase_backward, phase_recompute;  ///< kPhase; all else as kDirection
};

/// Which devices take part in an op.
enum class Participants : std::uint8_t {
  kOneDevice,     ///< a compute op
  kExchange,      ///< sources and owners of the layer
  kOwners,        ///< owners of the layer
  kBothShares,    ///< the shares from which and to which a move goes
  kBalanceSet,    ///< the shares of all layers with experts, of all microbatches of the set
  kStateDevices,  ///< those that sum the state's gradients: its devices, or their hosts
  kStateHolders,  ///< those that hold any state, hosts included
  kWithHost,      ///< a device and its host
  kMovers         ///< givers and takers of a migration, which a placement does not know
};

/// Whose shares a compute op follows: Placement::shares() of this stage.
enum class Stage : std::uint8_t { kNone, kEmbed, kLayer, kLayerBefore, kHead };

/// How often a kind occurs.
enum class Occurs : std::uint8_t {
  kInMicrobatch,     ///< as layers and phases ask
  kPerBalanceSet,    ///< after the last router of a set
  kPerSharedState,   ///< once for a state with several devices, when its gradients are complete
  kPerShardedState,  ///< in the place of these once for a state whose optimizer is divided
  kPerStep,          ///< once, when all gradients are complete
  kPerState,         ///< then on every device of every state
  kPerLaggingState,  ///< on every host that updates a state a step late, when its gradients are complete
  kAfterUpdate,      ///< last, once for a state whose optimizer is divided
  kOfResidence,      ///< as the homes of states ask: see Residency
  kBetweenSteps      ///< no op of a step: see Migration
};

struct OpTraits {
  OpKind kind;
  const char* name;  ///< in texts and files, and part of hashes
  std::variant<ComputeKind, TransferKind> as;
  Phases phases;
  QueueRule queue;
  Participants participants;
  Stage stage;
  Occurs occurs;
  bool has_layer = false, has_microbatch = false, has_chunk = false, has_state = false;
};

extern const std::array<OpTraits, kNumOpKinds> kOpTraits;  ///< in the order of OpKind
inline const OpTraits& traits(OpKind kind) { return kOpTraits[idx(kind)]; }

/// Compute ops occupy one compute lane; all others are transfers with a lane on every participant.
inline bool is_compute(OpKind kind) { return std::holds_alternative<ComputeKind>(traits(kind).as); }
/// Fails when the kind is a transfer, or the reverse.
ComputeKind compute_kind(OpKind kind);
TransferKind transfer_kind(OpKind kind);
/// Belongs to an exchange of rows and needs its counts (Buffer::kLoad): these are the kinds that chunks cut.
inline bool needs_load(OpKind kind) { return traits(kind).has_chunk; }

/// Carries experts that owners lend each other, or their gradients: ExchangeLoad::guests says which.
inline bool is_of_guests(OpKind kind) { return kind == OpKind::kLend || kind == OpKind::kSettle; }

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

}  // namespace hetermoe
