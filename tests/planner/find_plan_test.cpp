#include <gtest/gtest.h>

#include <algorithm>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/planner.h"

namespace hetermoe {
namespace {

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
