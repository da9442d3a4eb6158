#include "hetermoe/planner/search/leave_out.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

using Devices = std::vector<DeviceId>;

/// A node of two H100, one of one H100 with a slow network, and one each of A40 and V100.
Cluster three_types() {
  Cluster cluster;
  cluster.types = {catalogue_device("H100", "test"), catalogue_device("A40", "test"),
                   catalogue_device("V100", "test")};
  for (NodeId node = 0; node < 4; ++node)
    cluster.nodes.push_back({fmt::format("n{}", node), node == 1 ? 1e9 : 1e10, 1e-5, 1e10, 1e-6});
  cluster.devices = {{0, 0, 1}, {0, 0, 1}, {0, 1, 1}, {1, 2, 1}, {2, 3, 1}};
  return cluster;
}

/// Each set once: the slow device is the one outside of full nodes, and the last of its type.
TEST(DevicesToLeaveOut, AreThoseOutsideFullNodesBeyondEvenOnesAndOnSlowOnes) {
  EXPECT_EQ(devices_to_leave_out(three_types(), {}), (std::vector<Devices>{{2}, {1}}));
}

TEST(DevicesToLeaveOut, AreTypesThatTheBestPlanLeavesOut) {
  Plan best;
  best.groups.emplace_back().devices = {0, 1, 4};
  EXPECT_EQ(devices_to_leave_out(three_types(), best), (std::vector<Devices>{{3}, {2}, {1}}));
}

TEST(DevicesToLeaveOut, AreNoTypesOfTwo) {
  Cluster cluster = three_types();
  cluster.devices.resize(4);
  Plan best;
  best.groups.emplace_back().devices = {0};
  EXPECT_EQ(devices_to_leave_out(cluster, best), (std::vector<Devices>{{2}, {1}}));
}

TEST(DevicesToLeaveOut, AreTheLastOfEachTypeInAVerySmallCluster) {
  Cluster cluster = three_types();
  cluster.nodes[1].network = cluster.nodes[0].network;
  for (const NodeId node : {2, 3, 3}) cluster.devices.push_back({node - 1, node, 1});
  EXPECT_EQ(devices_to_leave_out(cluster, {}), (std::vector<Devices>{{2}, {1}, {5}, {7}}));
  cluster.devices.push_back(cluster.devices[0]);
  EXPECT_EQ(devices_to_leave_out(cluster, {}).size(), 2u);
}

}  // namespace
}  // namespace hetermoe
