#include <gtest/gtest.h>

#include <set>

#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

enum class Three : std::uint8_t { kOne, kTwo, kThree };
static_assert(kEnumCount<Three> == 3);

TEST(OpTraits, EveryKindHasANameOfItsOwn) {
  const std::vector<std::string>& names = EnumNames<OpKind>::names();
  EXPECT_EQ(static_cast<i32>(names.size()), kNumOpKinds);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

TEST(OpTraits, AKindIsEitherAComputeOpOrATransfer) {
  EXPECT_EQ(compute_kind(OpKind::kMerge), ComputeKind::kMerge);
  EXPECT_EQ(transfer_kind(OpKind::kMove), TransferKind::kMove);
  EXPECT_THROW(compute_kind(OpKind::kMove), InternalError);
  EXPECT_THROW(transfer_kind(OpKind::kMerge), InternalError);
}

TEST(OpTraits, ComputeOpsHaveTheComputeQueueAndOneDevice) {
  for (const OpTraits& row : kOpTraits) {
    for (const QueueBinding binding :
         {QueueBinding::kDirection, QueueBinding::kName, QueueBinding::kSingle, QueueBinding::kPhase}) {
      for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kRecompute, Phase::kWeights}) {
        const Queue queue = queue_of_op({.kind = row.kind, .phase = phase}, binding);
        EXPECT_EQ(queue == Queue::kCompute, is_compute(row.kind)) << row.name;
      }
    }
    EXPECT_EQ(row.participants == Participants::kOneDevice, is_compute(row.kind)) << row.name;
  }
}

bool allows(Phases phases, Phase phase) {
  switch (phases) {
    case Phases::kNone:
    case Phases::kForward:
      return phase == Phase::kForward;
    case Phases::kForwardBackward:
      return phase == Phase::kForward || phase == Phase::kBackward;
    case Phases::kForwardBackwardRecompute:
      return phase != Phase::kWeights;
    case Phases::kAll:
      return true;
  }
  return false;
}

/// The fields of every op of a schedule are those that the row of its kind names.
TEST(OpTraits, OpsOfSchedulesAreAsTheTableSays) {
  const ModelConfig model = test::make_model({.num_layers = 3, .dense = {0}});
  Plan plan = test::make_zebra_plan(model, test::make_cluster({2, 2}, 2), {.attention = 2, .experts = 2});
  plan.chunks = 2;
  plan.weight_gradients = WeightGradients::kAfter;
  plan.tally = true;
  plan.groups[0].head = {{{.device = 2, .sequences = 2}}};  // moves
  std::set<OpKind> seen;
  for (const char* optimizer : {"whole", "sharded", "on the host", "a step late"}) {
    plan.shard_optimizer = optimizer == std::string("sharded");
    plan.guest_slots = plan.shard_optimizer ? 1 : 0;
    plan.recompute = plan.shard_optimizer ? Recompute::kLocal : Recompute::kResend;
    if (optimizer == std::string("on the host")) {
      plan.groups[0].embed_home = plan.groups[0].head_home =
          Home{.optimizer = Residence::kHost, .devices = {}};
      plan.hosts.assign(plan.dtype.size(), 0);
    }
    const bool lags = optimizer == std::string("a step late");
    if (lags) {
      const Home all{.weights = Residence::kHost, .optimizer = Residence::kHost, .devices = {}};
      plan.groups[0].embed_home = plan.groups[0].head_home = all;
      for (LayerPlacement& layer : plan.groups[0].layers) layer.attention_home = layer.experts_home = all;
    }
    for (const Op& op : build_schedule(plan, model, {.balance = true, .staleness = lags ? 1 : 0}).ops) {
      const OpTraits& row = traits(op.kind);
      seen.insert(op.kind);
      EXPECT_TRUE(allows(row.phases, op.phase)) << to_string(op);
      EXPECT_EQ(op.layer >= 0, row.has_layer) << to_string(op);
      EXPECT_EQ(op.microbatch >= 0, row.has_microbatch) << to_string(op);
      EXPECT_EQ(op.state >= 0, row.has_state) << to_string(op);
      EXPECT_TRUE(op.chunk == 0 || row.has_chunk) << to_string(op);
    }
  }
  for (const OpTraits& row : kOpTraits) {
    EXPECT_EQ(seen.count(row.kind) == 1, row.occurs != Occurs::kBetweenSteps) << row.name;
  }
}

}  // namespace
}  // namespace hetermoe
