#include "hetermoe/planner/search/leave_out.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/planner.h"

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

/// A host on one of several nodes is not used, and the node that has none is named.
TEST(FindPlan, NodesWithoutAHostAreNamed) {
  PlanRequest request;
  request.model = load_model("tiny");
  request.cluster = load_cluster("demo-hosts");
  request.seq_len = 64, request.sequences = 8;
  const char* said =
      "plan uses main memory: node old has no host in the cluster file, and all nodes need one";
  const auto tells = [&](const PlanResult& result) {
    return std::any_of(result.explanation.begin(), result.explanation.end(),
                       [&](const std::string& line) { return line.find(said) != std::string::npos; });
  };
  EXPECT_FALSE(tells(find_plan(request)));
  request.cluster.nodes[1].host.reset();
  EXPECT_TRUE(tells(find_plan(request)));
  request.model = load_model("olmoe-1b-7b");
  request.limits.memory_reserve = 30 * kGiB;
  const PlanResult unfit = find_plan(request);
  ASSERT_FALSE(unfit.feasible());
  EXPECT_NE(unfit.infeasible.find(said), std::string::npos) << unfit.infeasible;
  for (Node& node : request.cluster.nodes) node.host.reset();
  EXPECT_EQ(find_plan(request).infeasible.find("plan uses main memory"), std::string::npos);
}

}  // namespace
}  // namespace hetermoe
