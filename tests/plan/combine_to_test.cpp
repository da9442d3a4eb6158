#include "hetermoe/plan/combine_to.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

class CombineToTest : public ::testing::Test {
 protected:
  CombineToTest() {
    StrategyRequest request;
    request.seq_len = 8;
    request.sequences = request.microbatches = 4;
    request.attention = {0, 1}, request.experts = {2, 3};
    request.depth_groups = {2};
    plan_ = find_strategy("af-pipe").make(model_, cluster_, request);
    plan_.combine_to = CombineTo::kNext;
  }
  std::string fault() {
    const std::vector<std::string> faults = validate(plan_, model_, cluster_);
    return faults.empty() ? "" : faults[0];
  }

  ModelConfig model_ = test::make_model({.num_layers = 4});
  Cluster cluster_ = test::make_cluster({4});
  Plan plan_;
};

TEST_F(CombineToTest, IsAKeyOfPlans) {
  EXPECT_EQ(fault(), "");
  EXPECT_EQ(to_json(plan_)["combine_to"], "next");
  EXPECT_EQ(plan_from_json(to_json(plan_), "plan.json").combine_to, CombineTo::kNext);
  plan_.combine_to = CombineTo::kSource;
  EXPECT_FALSE(to_json(plan_).contains("combine_to"));
}

TEST_F(CombineToTest, ADeviceOnBothSidesIsRefused) {
  plan_.groups[0].layers[1].attention = {{{0, 0}, {1, 1}}};
  EXPECT_EQ(
      fault(),
      "[combine_to] got next, but device 0 has shares of microbatch 0 in layer 0 and in layer 1, which are "
      "divided otherwise (groups[0]): expected source, or devices of their own for each of both");
  plan_.combine_to = CombineTo::kSource;
  EXPECT_EQ(fault(), "");
}

TEST_F(CombineToTest, WhatDoesNotGoWithItIsNamed) {
  const auto refused = [&](const std::string& what) {
    return "[combine_to] got next in a plan with " + what + ", which no such plan may have: expected source";
  };
  Plan plan = plan_;
  plan_.tally = true;
  EXPECT_EQ(fault(), refused("tally"));
  plan_ = plan;
  plan_.guest_slots = 2;
  EXPECT_EQ(fault(), refused("guest_slots"));
  plan_ = plan;
  plan_.recompute = Recompute::kResend;
  plan_.groups[0].layers[2].attention_backward = {{{1, 1}}};
  EXPECT_EQ(fault(), refused("attention_backward"));
  plan_ = plan;
  plan_.groups[0].layers[2].attention = {{{0, 1, 8, model_.num_heads, 0}}};
  EXPECT_EQ(fault(), refused("teams"));
  plan_ = plan;
  plan_.groups[0].layers[0].experts_at = ExpertsAt::kSources;
  for (ExpertOwners& owners : plan_.groups[0].layers[0].experts) owners = {{0, 1}};
  EXPECT_EQ(fault(), refused("experts_at sources"));
}

TEST_F(CombineToTest, NothingChangesWhereNothingMoves) {
  Plan zebra = test::make_zebra_plan(model_, cluster_, {2, 2, 2});
  const u64 before = hash(build_schedule(zebra, model_));
  zebra.combine_to = CombineTo::kNext;
  EXPECT_TRUE(test::no_faults(validate(zebra, model_, cluster_)));
  EXPECT_EQ(hash(build_schedule(zebra, model_)), before);
}

}  // namespace
}  // namespace hetermoe
