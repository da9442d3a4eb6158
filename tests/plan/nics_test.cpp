#include "hetermoe/plan/nics.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

/// Two nodes of two devices with two ports each.
class NicsTest : public ::testing::Test {
 protected:
  NicsTest() {
    for (Node& node : cluster_.nodes) node.nics = 2;
    plan_ = plan_on({0, 1, 2, 3});
  }
  Plan plan_on(const std::vector<DeviceId>& devices) const {
    StrategyRequest request;
    request.seq_len = 8;
    request.sequences = std::ssize(devices);
    request.attention = devices;
    return find_strategy("ep").make(model_, cluster_, request);
  }
  std::vector<std::string> faults(const std::vector<i64>& nics) {
    plan_.nics = nics;
    return validate(plan_, model_, cluster_);
  }

  ModelConfig model_ = test::make_model({});
  Cluster cluster_ = test::make_cluster({2, 2});
  Plan plan_;
};

TEST_F(NicsTest, AreAKeyOfPlans) {
  EXPECT_FALSE(to_json(plan_).contains("nics"));
  EXPECT_TRUE(test::no_faults(faults({1, 1, 0, 1})));
  EXPECT_EQ(to_json(plan_)["nics"], Json({1, 1, 0, 1}));
  EXPECT_EQ(plan_from_json(to_json(plan_), "plan.json").nics, plan_.nics);
}

TEST_F(NicsTest, ThatANodeLacksAreRefused) {
  EXPECT_EQ(faults({1, 1, 1}),
            (std::vector<std::string>{"[nics] has 3 entries, expected one per device of the cluster (4)"}));
  EXPECT_EQ(
      faults({1, 1, 1, 2}),
      (std::vector<std::string>{
          "[nics] devices of node node1 have 3 NICs for themselves, expected at most the 2 of the node. "
          "Give fewer, or state in the cluster file how many it has, such as nics: 3"}));
}

TEST_F(NicsTest, ADeviceNeedsOneForTheNetwork) {
  EXPECT_EQ(
      faults({1, 1, 0, 2}),
      (std::vector<std::string>{
          "[nics] device 2: T0#2 needs the network, but other devices of node node1 have all of its NICs "
          "(2): expected one that it has or shares"}));
  plan_ = plan_on({2, 3});
  EXPECT_TRUE(test::no_faults(faults({1, 1, 0, 2}))) << "all devices at work are on one node";
}

TEST_F(NicsTest, AHostNeedsOneThatNoDeviceHas) {
  for (Node& node : cluster_.nodes) node.host = NodeHost{.memory_gib = 1};
  plan_.hosts = {0, 0, 1, 1};
  EXPECT_TRUE(test::no_faults(faults({1, 0, 0, 1})));
  EXPECT_TRUE(test::has_fault(faults({1, 0, 1, 1}), "[nics] the host of node1 needs the network"));
}

TEST_F(NicsTest, OneNumberOfAJobIsThatOfAllDevices) {
  EXPECT_EQ(nics_of_devices({}, cluster_), std::vector<i64>());
  EXPECT_EQ(nics_of_devices({1}, cluster_), (std::vector<i64>{1, 1, 1, 1}));
  EXPECT_EQ(nics_of_devices({1, 0, 2, 0}, cluster_), (std::vector<i64>{1, 0, 2, 0}));
  EXPECT_EQ(error_of<ConfigError>([&] {
              nics_of_devices({1, 0}, cluster_);
            }),
            "[plan.nics] got 2 numbers, expected one for all devices of cluster test, or one each (4)");
}

}  // namespace
}  // namespace hetermoe
