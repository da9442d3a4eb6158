#include "hetermoe/planner/moves.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

using Counts = std::vector<i64>;

/// Three devices; 0 and 1 compute attention and own two experts each, 2 is in no group.
class Moves : public ::testing::Test {
 protected:
  Moves() {
    StrategyRequest request;
    request.seq_len = 8;
    request.sequences = 8;
    request.microbatches = 2;
    request.attention = {0, 1};
    plan_ = find_strategy("ep").make(model_, test::make_cluster({3}), request);
  }

  MoveContext context() const { return {.plan = plan_, .alike = alike_}; }

  /// Experts of each device in a layer.
  static Counts owned(const Plan& plan, std::size_t layer, std::size_t group = 0) {
    Counts counts(plan.dtype.size(), 0);
    for (const auto& owners : plan.groups[group].layers[layer].experts)
      ++counts[static_cast<std::size_t>(owners.front().device)];
    return counts;
  }

  bool is_valid(const Plan& plan) const {
    return test::no_faults(validate(plan, model_, test::make_cluster({3})));
  }

  ModelConfig model_ = test::make_model({.num_layers = 2, .num_experts = 4});
  Plan plan_;
  std::vector<i32> alike_ = {0};
};

TEST_F(Moves, GiveExpertChangesOneLayer) {
  const std::optional<Plan> next = give_expert(context(), {.group = 0, .from = 0, .to = 1}, 1);
  ASSERT_TRUE(next);
  EXPECT_EQ(owned(*next, 0), (Counts{2, 2, 0}));
  EXPECT_EQ(owned(*next, 1), (Counts{1, 3, 0}));
  EXPECT_TRUE(is_valid(*next));
  EXPECT_EQ(owned(plan_, 1), (Counts{2, 2, 0}));
}

TEST_F(Moves, GiveColumnChangesEveryLayerAndADeviceOfNoGroupJoins) {
  const std::optional<Plan> next = give_column(context(), {.group = 0, .from = 1, .to = 2});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->groups[0].devices, (std::vector<DeviceId>{0, 1, 2}));
  EXPECT_EQ(owned(*next, 0), (Counts{2, 1, 1}));
  EXPECT_EQ(owned(*next, 1), (Counts{2, 1, 1}));
  EXPECT_TRUE(is_valid(*next));
}

TEST_F(Moves, SwapLayersKeepsTheSum) {
  const std::optional<Plan> next = swap_layers(context(), {.group = 0, .from = 0, .to = 1}, 0, 1);
  ASSERT_TRUE(next);
  EXPECT_EQ(owned(*next, 0), (Counts{1, 3, 0}));
  EXPECT_EQ(owned(*next, 1), (Counts{3, 1, 0}));
}

TEST_F(Moves, RetireDeviceLeavesNothingOnIt) {
  const std::optional<Plan> next = retire_device(context(), {.group = 0, .from = 0, .to = 1});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->groups[0].devices, (std::vector<DeviceId>{1}));
  EXPECT_EQ(owned(*next, 0), (Counts{0, 4, 0}));
  EXPECT_EQ(next->groups[0].head, (Shares{{{1, 4}}}));
  EXPECT_TRUE(is_valid(*next));
}

TEST_F(Moves, GiveSequenceTakesOneOfEveryMicrobatch) {
  const std::optional<Plan> next = give_sequence(context(), {.group = 0, .from = 0, .to = 2});
  ASSERT_TRUE(next);
  EXPECT_EQ(next->groups[0].layers[1].attention, (Shares{{{0, 1}, {1, 2}, {2, 1}}}));
  EXPECT_EQ(next->groups[0].embed, next->groups[0].head);
  EXPECT_TRUE(is_valid(*next));
}

TEST_F(Moves, DoNotApplyWhereThereIsNothingToGive) {
  const Move from_outside{.group = 0, .from = 2, .to = 0};
  EXPECT_FALSE(give_expert(context(), from_outside, 0));
  EXPECT_FALSE(give_column(context(), from_outside));
  EXPECT_FALSE(give_sequence(context(), from_outside));
  plan_.groups[0].head = {{{1, 4}}};  // a pipeline
  const Move inside{.group = 0, .from = 0, .to = 1};
  EXPECT_FALSE(give_sequence(context(), inside));
  EXPECT_FALSE(retire_device(context(), inside));
}

TEST_F(Moves, ReplicasStayWhereTheyAre) {
  for (LayerPlacement& layer : plan_.groups[0].layers) {
    for (auto& owners : layer.experts) owners = {{.device = 0, .share = 0.5}, {.device = 1, .share = 0.5}};
  }
  EXPECT_FALSE(give_column(context(), {.group = 0, .from = 0, .to = 1}));
}

TEST_F(Moves, GroupsArrangedAlikeChangeAlikeUnlessADeviceJoins) {
  const ModelConfig model = test::make_model({.num_layers = 1, .num_experts = 4});
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = 4;
  Plan plan;
  for (const std::vector<DeviceId>& devices : {std::vector<DeviceId>{0, 1}, {2, 3}}) {
    request.attention = devices;
    Plan of_group = find_strategy("ep").make(model, test::make_cluster({5}), request);
    plan.dtype = of_group.dtype;
    plan.groups.push_back(of_group.groups[0]);
  }
  const std::vector<i32> alike = {0, 0};
  const MoveContext context{.plan = plan, .alike = alike};
  const std::optional<Plan> both = give_column(context, {.group = 0, .from = 1, .to = 0});
  ASSERT_TRUE(both);
  EXPECT_EQ(owned(*both, 0, 0), (Counts{3, 1, 0, 0, 0}));
  EXPECT_EQ(owned(*both, 0, 1), (Counts{0, 0, 3, 1, 0}));
  const std::optional<Plan> one = give_column(context, {.group = 0, .from = 1, .to = 4});
  ASSERT_TRUE(one);
  EXPECT_EQ(owned(*one, 0, 0), (Counts{2, 1, 0, 0, 1}));
  EXPECT_EQ(owned(*one, 0, 1), (Counts{0, 0, 2, 2, 0}));
}

TEST_F(Moves, FreeDevicesAreThoseOfNoGroupThatMayBeUsed) {
  EXPECT_EQ(free_devices(plan_), (std::vector<DeviceId>{2}));
}

std::vector<std::pair<DeviceId, DeviceId>> pairs(const std::vector<Move>& moves) {
  std::vector<std::pair<DeviceId, DeviceId>> out;
  for (const Move& move : moves) out.emplace_back(move.from, move.to);
  return out;
}

TEST_F(Moves, ExchangesGoFromTheBusiestToTheLeastBusyAndFreeDevicesTake) {
  EXPECT_EQ(pairs(exchanges(plan_, 0, {0.2, 0.9, 0}, {2})),
            (std::vector<std::pair<DeviceId, DeviceId>>{{1, 2}, {1, 0}, {0, 2}, {0, 1}}));
}

TEST_F(Moves, ExchangesOfALargeGroupAreThoseOfThreeGiversAndThreeTakers) {
  plan_.groups[0].devices = {0, 1, 2, 3, 4, 5, 6};
  const std::vector<double> busy = {0.1, 0.7, 0.2, 0.6, 0.3, 0.5, 0.4};
  EXPECT_EQ(pairs(exchanges(plan_, 0, busy, {})),
            (std::vector<std::pair<DeviceId, DeviceId>>{
                {1, 0}, {1, 2}, {1, 4}, {3, 0}, {3, 2}, {3, 4}, {5, 0}, {5, 2}, {5, 4}}));
}

}  // namespace
}  // namespace hetermoe
