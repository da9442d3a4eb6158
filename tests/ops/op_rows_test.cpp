#include <gtest/gtest.h>

#include <set>

#include "hetermoe/ops/buffer_index.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

enum class Three : std::uint8_t { kOne, kTwo, kThree };
static_assert(kEnumCount<Three> == 3);

TEST(OpRows, EveryKindHasANameOfItsOwn) {
  const std::vector<std::string>& names = EnumNames<OpKind>::names();
  EXPECT_EQ(static_cast<i32>(names.size()), kNumOpKinds);
  EXPECT_EQ(std::set<std::string>(names.begin(), names.end()).size(), names.size());
}

/// Calls f with each kind and its row.
template <class F>
void for_kinds(const F& f) {
  for (i32 kind = 0; kind < kNumOpKinds; ++kind)
    f(static_cast<OpKind>(kind), row_of(static_cast<OpKind>(kind)));
}

TEST(OpRows, AKindIsEitherAComputeOpOrATransfer) {
  for_kinds([](OpKind kind, const OpRow& row) {
    const bool in_step = row.occurs != Occurs::kBetweenSteps;
    EXPECT_EQ(row.work != nullptr, is_compute(kind)) << name_of(kind);
    EXPECT_EQ(row.bytes != nullptr, !is_compute(kind) && in_step) << name_of(kind);
    EXPECT_EQ(row.accesses != nullptr, in_step) << name_of(kind);
    EXPECT_TRUE(row.occurs_in == nullptr || row.occurs == Occurs::kInMicrobatch) << name_of(kind);
    EXPECT_TRUE(row.has_work == nullptr || !row.has_state) << name_of(kind);
  });
}

TEST(OpRows, ComputeOpsHaveTheComputeQueueAndOneDevice) {
  for_kinds([](OpKind kind, const OpRow& row) {
    for (const QueueBinding binding : {QueueBinding::kDirection, QueueBinding::kName, QueueBinding::kPhase}) {
      for (const Phase phase : {Phase::kForward, Phase::kBackward, Phase::kRecompute, Phase::kWeights}) {
        const Queue queue = queue_of_op({.kind = kind, .phase = phase}, binding);
        EXPECT_EQ(queue == Queue::kCompute, is_compute(kind)) << name_of(kind);
      }
    }
    EXPECT_EQ(row.participants == Participants::kOneDevice, is_compute(kind)) << name_of(kind);
  });
}

TEST(BufferKeys, AreMadeByWhatTellsBuffersApart) {
  EXPECT_EQ(to_string(BufferKey::of_chunk(Buffer::kRows, 1, 0, 2)), "rows (layer 1, microbatch 0, chunk 2)");
  EXPECT_EQ(to_string(BufferKey::of_state(Buffer::kGrad, 3)), "grad (state 3)");
  EXPECT_EQ(to_string(BufferKey::of_slot(Buffer::kSlot, SlotPart::kRows, 1)), "slot 1 of saved rows");
  EXPECT_THROW(BufferKey::of_layer(Buffer::kGrad, 3, 0), InternalError);
  EXPECT_THROW(BufferKey::of_state(Buffer::kRows, 3), InternalError);
}

/// Buffers of a row have numbers of their own, below its size.
TEST(BufferKeys, HaveNumbersOfTheirOwn) {
  const ModelConfig model = test::make_model({.num_layers = 2});
  Plan plan = test::make_zebra_plan(model, test::make_cluster({1, 1}, 2), {.attention = 1, .experts = 1});
  plan.chunks = 3;
  const Placement placement(plan, model, {});
  const BufferIndex index(placement);
  std::set<std::size_t> seen;
  i64 made = 0;
  for (i32 layer = -1; layer <= 2; ++layer) {
    for (i32 m = 0; m < placement.num_microbatches(0); ++m) {
      for (i32 c = 0; c < 3; ++c, ++made) seen.insert(index(BufferKey::of_chunk(Buffer::kRows, layer, m, c)));
    }
  }
  EXPECT_EQ(static_cast<i64>(seen.size()), made);
  EXPECT_LT(*seen.rbegin(), index.size(Buffer::kRows));
}

/// The fields of every op of a schedule are those that the row of its kind names.
TEST(OpRows, OpsOfSchedulesAreAsTheTableSays) {
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
    const bool teams = optimizer == std::string("whole");
    for (LayerPlacement& layer : plan.groups[0].layers) {
      for (ShareRow& row : layer.attention) {
        const i64 sequences = sequences_of(row);
        for (std::size_t i = 0; i < row.size(); ++i) {
          const i64 all = i == 0 ? 1 : 0;
          row[i] = {row[i].device, teams ? sequences : all * sequences,
                    teams ? all * sequences * plan.seq_len : 0, teams ? all * model.num_heads : 0,
                    teams ? 0 : -1};
        }
      }
    }
    const bool lags = optimizer == std::string("a step late");
    if (lags) {
      const Home all{.weights = Residence::kHost, .optimizer = Residence::kHost, .devices = {}};
      plan.groups[0].embed_home = plan.groups[0].head_home = all;
      for (LayerPlacement& layer : plan.groups[0].layers) layer.attention_home = layer.experts_home = all;
    }
    for (const Op& op : build_schedule(plan, model, {.balance = true, .staleness = lags ? 1 : 0}).ops) {
      const OpRow& row = row_of(op.kind);
      seen.insert(op.kind);
      EXPECT_TRUE(has_phase(op.kind, op.phase)) << to_string(op);
      EXPECT_EQ(op.layer >= 0, row.has_layer) << to_string(op);
      EXPECT_EQ(op.microbatch >= 0, row.has_microbatch) << to_string(op);
      EXPECT_EQ(op.state >= 0, row.has_state) << to_string(op);
      EXPECT_TRUE(op.chunk == 0 || row.has_chunk || row.has_part) << to_string(op);
    }
  }
  for_kinds([&](OpKind kind, const OpRow& row) {
    EXPECT_EQ(seen.count(kind) == 1, row.occurs != Occurs::kBetweenSteps) << name_of(kind);
  });
}

}  // namespace
}  // namespace hetermoe
