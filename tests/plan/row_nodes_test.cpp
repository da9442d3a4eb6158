#include "hetermoe/plan/row_nodes.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

class RowNodesTest : public ::testing::Test {
 protected:
  RowNodesTest() {
    StrategyRequest request;
    request.seq_len = 8;
    request.sequences = request.microbatches = 4;
    plan_ = find_strategy("ep").make(model_, cluster_, request);
    plan_.row_nodes = {0, 0, 1, 1};
  }
  std::string fault() {
    const std::vector<std::string> faults = validate(plan_, model_, cluster_);
    return faults.empty() ? "" : faults[0];
  }

  ModelConfig model_ = test::make_model({.num_layers = 2});
  Cluster cluster_ = test::make_cluster({2, 2});
  Plan plan_;
};

TEST_F(RowNodesTest, AreAKeyOfPlans) {
  EXPECT_EQ(nodes_of_devices(cluster_), (std::vector<NodeId>{0, 0, 1, 1}));
  EXPECT_EQ(fault(), "");
  EXPECT_EQ(plan_from_json(to_json(plan_), "plan.json").row_nodes, plan_.row_nodes);
  plan_.row_nodes.clear();
  EXPECT_EQ(fault(), "");
  EXPECT_FALSE(to_json(plan_).contains("row_nodes"));
}

TEST_F(RowNodesTest, OtherNodesThanThoseOfTheClusterAreRefused) {
  plan_.row_nodes = {0, 1, 1, 1};
  EXPECT_EQ(fault(), "[row_nodes] are not the nodes of the 4 devices of " + cluster_.name +
                         ": expected these, or none");
}

TEST_F(RowNodesTest, WhatDoesNotGoWithThemIsNamed) {
  const auto refused = [](const std::string& what) {
    return "[row_nodes] got nodes (plan.node_dedup) in a plan with " + what +
           ", which no such plan may have: expected none";
  };
  const Plan plan = plan_;
  plan_.row_dedup = false;
  EXPECT_EQ(fault(), refused("row_dedup off"));
  plan_ = plan;
  plan_.tally = true;
  EXPECT_EQ(fault(), refused("copies that are divided by their counts (tally, or foreseen)"));
  plan_ = plan;
  plan_.combine_to = CombineTo::kNext;
  EXPECT_EQ(fault(), refused("combine_to next"));
  plan_ = plan;
  plan_.groups[0].layers[0].experts_at = ExpertsAt::kSources;
  for (ExpertOwners& owners : plan_.groups[0].layers[0].experts) owners = {{0, 1}};
  EXPECT_NE(fault(), "");
}

}  // namespace
}  // namespace hetermoe
