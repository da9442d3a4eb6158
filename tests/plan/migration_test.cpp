#include "hetermoe/plan/migration.h"

#include <gtest/gtest.h>

#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

using Owners = std::vector<std::vector<DeviceId>>;

constexpr i64 kExpertBytes = 12 * 3 * 8 * 16;  // fp32: gate, up, down of 8 x 16

/// Four devices on two nodes; attention, embedding and head of one layer stay on device 0.
struct Case {
  Cluster cluster = test::make_cluster({2, 2});
  ModelConfig model;

  explicit Case(i64 num_experts) : model(test::make_model({.num_layers = 1, .num_experts = num_experts})) {}

  Plan plan(const Owners& owners, DeviceId attention = 0) const {
    Plan plan;
    plan.model = model.name;
    plan.seq_len = 16;
    plan.dtype.assign(cluster.devices.size(), Dtype::kFp32);
    Group group;
    group.devices = {0, 1, 2, 3};
    group.microbatches = {1};
    group.embed = group.head = {{{attention, 1}}};
    group.layers.resize(1);
    group.layers[0].attention = {{{attention, 1}}};
    for (const std::vector<DeviceId>& of_expert : owners) {
      group.layers[0].experts.emplace_back();
      for (const DeviceId device : of_expert)
        group.layers[0].experts.back().push_back({device, 1.0 / static_cast<double>(of_expert.size())});
    }
    plan.groups = {group};
    return plan;
  }
  UnitMoves moves(const Owners& before, const Owners& after, const MoveOptions& options = {}) const {
    return moves_between(plan(before), plan(after), model, cluster, options);
  }
};

std::vector<std::string> texts(const std::vector<UnitMove>& moves) {
  std::vector<std::string> all;
  for (const UnitMove& move : moves)
    all.push_back(fmt::format("{}: {} to {}", to_string(move.unit), move.from, move.to));
  return all;
}
using Texts = std::vector<std::string>;

TEST(Moves, EachNewOwnerGetsTheExpertOnceFromAnOldOne) {
  const Case c(6);
  const UnitMoves moves = c.moves({{0}, {0}, {1}, {1}, {2}, {3}}, {{0, 2}, {1}, {0}, {1}, {2, 1}, {3}});
  EXPECT_EQ(texts(moves.moves), (Texts{"expert l0 e0: 0 to 2", "expert l0 e1: 0 to 1", "expert l0 e2: 1 to 0",
                                       "expert l0 e4: 2 to 1"}));
  EXPECT_EQ(moves.bytes(), 4 * kExpertBytes);
  EXPECT_TRUE(moves.lost.empty());
}

TEST(Moves, AGiverOfTheReceiversNodeComesFirst) {
  const Case c(1);
  EXPECT_EQ(texts(c.moves({{0, 2}}, {{3}}).moves), Texts{"expert l0 e0: 2 to 3"});
  EXPECT_EQ(texts(c.moves({{0, 2}}, {{1}}).moves), Texts{"expert l0 e0: 0 to 1"});
}

TEST(Moves, OfEqualGiversWhoHasSentLeastThenTheLowestGives) {
  const Case c(4);
  EXPECT_EQ(texts(c.moves({{0, 1}, {0, 1}, {0, 1}, {0}}, {{2}, {2}, {2}, {0}}).moves),
            (Texts{"expert l0 e0: 0 to 2", "expert l0 e1: 1 to 2", "expert l0 e2: 0 to 2"}));
  // A unit that only 0 holds counts for what 0 has sent.
  EXPECT_EQ(texts(c.moves({{0}, {0, 1}, {0}, {0}}, {{2}, {3}, {0}, {0}}).moves),
            (Texts{"expert l0 e0: 0 to 2", "expert l0 e1: 1 to 3"}));
}

TEST(Moves, AReceiverGivesNothingThatItGets) {
  const Case c(1);
  EXPECT_EQ(texts(c.moves({{0}}, {{2, 3}}).moves), (Texts{"expert l0 e0: 0 to 2", "expert l0 e0: 0 to 3"}));
}

TEST(Moves, EveryUnitTravelsWhenADeviceTakesAllOver) {
  const Case c(2);
  const UnitMoves moves = moves_between(c.plan({{0}, {1}}, 0), c.plan({{3}, {3}}, 3), c.model, c.cluster);
  EXPECT_EQ(texts(moves.moves), (Texts{"embed: 0 to 3", "attention l0: 0 to 3", "expert l0 e0: 0 to 3",
                                       "expert l0 e1: 1 to 3", "head: 0 to 3"}));
  const ParamCounts counts = count_parameters(c.model);
  EXPECT_EQ(moves.bytes(), 12 * static_cast<double>(counts.total));
}

TEST(Moves, SamePlacementMovesNothing) {
  const Case c(2);
  EXPECT_TRUE(c.moves({{0}, {1, 2}}, {{0}, {1, 2}}).moves.empty());
  // A replica that goes needs no move either.
  EXPECT_TRUE(c.moves({{0}, {1, 2}}, {{0}, {2}}).moves.empty());
}

TEST(Moves, OnlySurvivorsGiveAndWhatNobodyLeftHoldsIsLost) {
  const Case c(3);
  MoveOptions without_one;
  without_one.alive = {true, false, true, true};
  const UnitMoves moves = c.moves({{1}, {0, 1}, {1, 2}}, {{0}, {3}, {3}}, without_one);
  EXPECT_EQ(texts(moves.moves), (Texts{"expert l0 e1: 0 to 3", "expert l0 e2: 2 to 3"}));
  ASSERT_EQ(moves.lost.size(), 1U);
  EXPECT_EQ(to_string(moves.lost[0]), "expert l0 e0");
}

TEST(Moves, AFrozenUnitTravelsWithoutMoments) {
  const Case c(2);
  MoveOptions options;
  options.frozen = {{.layer = 0, .part = UnitPart::kExperts, .expert = 1}};
  const UnitMoves moves = c.moves({{0}, {0}}, {{1}, {1}}, options);
  ASSERT_EQ(moves.moves.size(), 2U);
  EXPECT_EQ(moves.moves[0].bytes, kExpertBytes);
  EXPECT_EQ(moves.moves[1].bytes, kExpertBytes / 3);
  EXPECT_EQ(moves.moves[1].dtype, Dtype::kFp32);
}

TEST(Moves, BytesOfAMoveFollowTheGiversDtype) {
  const Case c(1);
  const Unit expert = {.layer = 0, .part = UnitPart::kExperts, .expert = 0};
  EXPECT_EQ(bytes_to_move(c.model, expert, Dtype::kBf16, false), kExpertBytes);
  EXPECT_EQ(bytes_to_move(c.model, expert, Dtype::kFp64, false), 2 * kExpertBytes);
  EXPECT_EQ(bytes_to_move(c.model, expert, Dtype::kBf16, true), kExpertBytes / 6);
}

TEST(Moves, ARoutersBiasTravelsWithItsAttentionPart) {
  Case c(4);
  const Unit attention = {.layer = 0, .part = UnitPart::kAttention};
  const Bytes without = bytes_to_move(c.model, attention, Dtype::kFp32, false);
  c.model.router_bias = true;
  EXPECT_EQ(bytes_to_move(c.model, attention, Dtype::kFp32, false), without + 4 * 4);
}

TEST(Holders, TiedEmbeddingsAreHeldByTheDevicesOfTheHeadAsWell) {
  Case c(1);
  Plan plan = c.plan({{0}});
  plan.groups[0].head = {{{2, 1}}};
  EXPECT_EQ(holders(plan, c.model), (Holders{{0}, {0}, {0}, {2}}));
  c.model.tie_embeddings = true;
  EXPECT_EQ(holders(plan, c.model), (Holders{{0, 2}, {0}, {0}}));
}

TEST(Holders, AShareOfNothingHolds) {
  const Case c(1);
  Plan plan = c.plan({{0}});
  plan.groups[0].layers[0].attention = {{{0, 1}, {3, 0}}};
  EXPECT_EQ(holders(plan, c.model)[1], (std::vector<DeviceId>{0, 3}));
}

}  // namespace
}  // namespace hetermoe
