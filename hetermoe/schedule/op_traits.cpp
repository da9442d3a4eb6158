#include "hetermoe/schedule/op_traits.h"

#include <algorithm>

namespace hetermoe {
namespace {

constexpr QueueRule always(Queue queue) {
  return {.forward = queue,
          .backward = queue,
          .by_name = queue,
          .single = queue,
          .phase_backward = queue,
          .phase_recompute = queue};
}
/// A queue of its own, unless all transfers share one.
constexpr QueueRule own(Queue queue) {
  QueueRule rule = always(queue);
  rule.single = Queue::kToExpert;
  return rule;
}

constexpr auto kCompute = always(Queue::kCompute);

}  // namespace

constexpr std::array<OpTraits, kNumOpKinds> kOpTraits = {{
    {.kind = OpKind::kEmbed,
     .name = "embed",
     .as = ComputeKind::kEmbed,
     .phases = Phases::kForwardBackward,
     .queue = kCompute,
     .participants = Participants::kOneDevice,
     .stage = Stage::kEmbed,
     .occurs = Occurs::kInMicrobatch,
     .has_microbatch = true},
    {.kind = OpKind::kAttention,
     .name = "attention",
     .as = ComputeKind::kAttention,
     .phases = Phases::kAll,
     .queue = kCompute,
     .participants = Participants::kOneDevice,
     .stage = Stage::kLayer,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true},
    {.kind = OpKind::kDispatch,
     .name = "dispatch",
     .as = TransferKind::kDispatch,
     .phases = Phases::kForwardBackwardRecompute,
     // Forward dispatch and backward combine carry rows to the experts.
     .queue = {.forward = Queue::kToExpert,
               .backward = Queue::kToAttention,
               .by_name = Queue::kToExpert,
               .single = Queue::kToExpert,
               .phase_backward = Queue::kToAttention,
               .phase_recompute = Queue::kToExpert},
     .participants = Participants::kExchange,
     .stage = Stage::kNone,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true,
     .has_chunk = true},
    {.kind = OpKind::kExperts,
     .name = "experts",
     .as = ComputeKind::kExperts,
     .phases = Phases::kAll,
     .queue = kCompute,
     .participants = Participants::kOneDevice,
     .stage = Stage::kNone,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true,
     .has_chunk = true},
    {.kind = OpKind::kCombine,
     .name = "combine",
     .as = TransferKind::kCombine,
     .phases = Phases::kForwardBackwardRecompute,
     .queue = {.forward = Queue::kToAttention,
               .backward = Queue::kToExpert,
               .by_name = Queue::kToAttention,
               .single = Queue::kToExpert,
               .phase_backward = Queue::kToExpert,
               .phase_recompute = Queue::kToAttention},
     .participants = Participants::kExchange,
     .stage = Stage::kNone,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true,
     .has_chunk = true},
    {.kind = OpKind::kMerge,
     .name = "merge",
     .as = ComputeKind::kMerge,
     .phases = Phases::kForward,
     .queue = kCompute,
     .participants = Participants::kOneDevice,
     .stage = Stage::kLayerBefore,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true},
    {.kind = OpKind::kMove,
     .name = "move",
     .as = TransferKind::kMove,
     .phases = Phases::kForwardBackwardRecompute,
     .queue = {.forward = Queue::kMove,
               .backward = Queue::kMove,
               .by_name = Queue::kMove,
               .single = Queue::kToExpert,
               .phase_backward = Queue::kMoveBack,
               .phase_recompute = Queue::kMoveSaved},
     .participants = Participants::kBothShares,
     .stage = Stage::kNone,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true},
    {.kind = OpKind::kHead,
     .name = "head",
     .as = ComputeKind::kHead,
     .phases = Phases::kForward,  // its backward belongs to the same op
     .queue = kCompute,
     .participants = Participants::kOneDevice,
     .stage = Stage::kHead,
     .occurs = Occurs::kInMicrobatch,
     .has_microbatch = true},
    {.kind = OpKind::kBalance,
     .name = "balance",
     .as = TransferKind::kBalance,
     .phases = Phases::kNone,
     .queue = own(Queue::kReduce),
     .participants = Participants::kBalanceSet,
     .stage = Stage::kNone,
     .occurs = Occurs::kPerBalanceSet,
     .has_microbatch = true},
    {.kind = OpKind::kReduce,
     .name = "reduce",
     .as = TransferKind::kReduce,
     .phases = Phases::kNone,
     .queue = own(Queue::kReduce),
     .participants = Participants::kStateDevices,
     .stage = Stage::kNone,
     .occurs = Occurs::kPerSharedState,
     .has_state = true},
    {.kind = OpKind::kReduceScatter,
     .name = "reduce_scatter",
     .as = TransferKind::kReduceScatter,
     .phases = Phases::kNone,
     .queue = own(Queue::kReduce),
     .participants = Participants::kStateDevices,
     .stage = Stage::kNone,
     .occurs = Occurs::kPerShardedState,
     .has_state = true},
    {.kind = OpKind::kNorm,
     .name = "norm",
     .as = TransferKind::kNorm,
     .phases = Phases::kNone,
     .queue = own(Queue::kReduce),
     .participants = Participants::kStateHolders,
     .stage = Stage::kNone,
     .occurs = Occurs::kPerStep},
    {.kind = OpKind::kUpdate,
     .name = "update",
     .as = ComputeKind::kUpdate,
     .phases = Phases::kNone,
     .queue = kCompute,
     .participants = Participants::kOneDevice,
     .stage = Stage::kNone,
     .occurs = Occurs::kPerState,
     .has_state = true},
    {.kind = OpKind::kPublish,
     .name = "publish",
     .as = ComputeKind::kPublish,
     .phases = Phases::kNone,
     .queue = kCompute,
     .participants = Participants::kOneDevice,
     .stage = Stage::kNone,
     .occurs = Occurs::kPerLaggingState,
     .has_state = true},
    {.kind = OpKind::kTake,
     .name = "take",
     .as = ComputeKind::kTake,
     .phases = Phases::kNone,
     .queue = kCompute,
     .participants = Participants::kOneDevice,
     .stage = Stage::kNone,
     .occurs = Occurs::kPerLaggingState,
     .has_state = true},
    {.kind = OpKind::kAllGather,
     .name = "all_gather",
     .as = TransferKind::kAllGather,
     .phases = Phases::kNone,
     .queue = own(Queue::kReduce),
     .participants = Participants::kStateDevices,
     .stage = Stage::kNone,
     .occurs = Occurs::kAfterUpdate,
     .has_state = true},
    {.kind = OpKind::kFetch,
     .name = "fetch",
     .as = TransferKind::kFetch,
     .phases = Phases::kNone,
     .queue = always(Queue::kToDevice),
     .participants = Participants::kWithHost,
     .stage = Stage::kNone,
     .occurs = Occurs::kOfResidence,
     .has_state = true},
    {.kind = OpKind::kStore,
     .name = "store",
     .as = TransferKind::kStore,
     .phases = Phases::kNone,
     .queue = always(Queue::kToHost),
     .participants = Participants::kWithHost,
     .stage = Stage::kNone,
     .occurs = Occurs::kOfResidence,
     .has_state = true},
    {.kind = OpKind::kMigrate,
     .name = "migrate",
     .as = TransferKind::kMigrate,
     .phases = Phases::kNone,
     .queue = always(Queue::kMove),
     .participants = Participants::kMovers,
     .stage = Stage::kNone,
     .occurs = Occurs::kBetweenSteps,
     .has_layer = true},
    {.kind = OpKind::kTally,
     .name = "tally",
     .as = TransferKind::kTally,
     .phases = Phases::kForward,
     .queue = always(Queue::kToExpert),
     .participants = Participants::kExchange,
     .stage = Stage::kNone,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true},
    {.kind = OpKind::kLend,
     .name = "lend",
     .as = TransferKind::kLend,
     .phases = Phases::kForwardBackward,
     .queue = own(Queue::kGuests),
     .participants = Participants::kOwners,
     .stage = Stage::kNone,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true},
    {.kind = OpKind::kSettle,
     .name = "settle",
     .as = TransferKind::kSettle,
     .phases = Phases::kForwardBackward,  // backward alone
     .queue = own(Queue::kGuests),
     .participants = Participants::kOwners,
     .stage = Stage::kNone,
     .occurs = Occurs::kInMicrobatch,
     .has_layer = true,
     .has_microbatch = true},
}};

namespace {

/// A row that is missing leaves an empty one at the end.
constexpr bool in_order() {
  for (std::size_t i = 0; i < kOpTraits.size(); ++i) {
    if (idx(kOpTraits[i].kind) != i) return false;
  }
  return true;
}
static_assert(in_order(), "every op kind has a row, and rows stand in the order of OpKind");

/// Rows that compute (or transfer), if they name each ComputeKind (or TransferKind) once; else -1.
template <class Kind>
constexpr i32 count_as() {
  bool seen[kEnumCount<Kind>] = {};
  i32 count = 0;
  for (const OpTraits& row : kOpTraits) {
    const Kind* kind = std::get_if<Kind>(&row.as);
    if (kind == nullptr) continue;
    if (seen[idx(*kind)]) return -1;
    seen[idx(*kind)] = true;
    ++count;
  }
  return count;
}
static_assert(count_as<ComputeKind>() == kEnumCount<ComputeKind>, "a row for each ComputeKind");
static_assert(count_as<TransferKind>() == kEnumCount<TransferKind>, "a row for each TransferKind");

constexpr bool names_every_queue() {
  for (i32 queue = 0; queue < kNumQueues; ++queue) {
    if (std::find(kQueueOrder.begin(), kQueueOrder.end(), static_cast<Queue>(queue)) == kQueueOrder.end())
      return false;
  }
  return true;
}
static_assert(names_every_queue(), "kQueueOrder holds every queue");

}  // namespace

ComputeKind compute_kind(OpKind kind) {
  HM_CHECK(is_compute(kind), "{} is not a compute op", traits(kind).name);
  return std::get<ComputeKind>(traits(kind).as);
}

TransferKind transfer_kind(OpKind kind) {
  HM_CHECK(!is_compute(kind), "{} is not a transfer", traits(kind).name);
  return std::get<TransferKind>(traits(kind).as);
}

const std::vector<std::string>& EnumNames<OpKind>::names() {
  static const std::vector<std::string> all = [] {
    std::vector<std::string> names;
    for (const OpTraits& row : kOpTraits) names.push_back(row.name);
    return names;
  }();
  return all;
}
const std::vector<std::string>& EnumNames<Phase>::names() {
  static const std::vector<std::string> all = names_of_all<Phase>({"F", "B", "R", "W"});
  return all;
}
const std::vector<std::string>& EnumNames<Queue>::names() {
  static const std::vector<std::string> all =
      names_of_all<Queue>({"compute", "to_expert", "to_attention", "move", "reduce", "guests", "move_back",
                           "move_saved", "to_device", "to_host"});
  return all;
}

}  // namespace hetermoe
