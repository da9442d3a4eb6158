#include "hetermoe/planner/search/cluster_part.h"

#include <gtest/gtest.h>

#include "hetermoe/base/index.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

TEST(ClusterPart, DevicesKeepTheirNames) {
  const Cluster whole = testing::nodes_of_eight({{"H100", 3}, {"A40", 2}});
  const Cluster part = without(whole, {0, 3});
  ASSERT_EQ(part.num_devices(), 3);
  EXPECT_EQ(part.device_name(0), "H100#1");
  EXPECT_EQ(part.device_name(2), "A40#4");
  EXPECT_EQ(without(part, {0}).device_name(1), "A40#4");
}

/// The same plan as without them, on the numbers that devices have in the whole cluster.
TEST(ClusterPart, IdleDevicesAreAsIfTheClusterHadNone) {
  PlanRequest request;
  request.model = load_model("d1");
  request.cluster = testing::nodes_of_eight({{"H100", 5}, {"A40", 4}});
  request.seq_len = 2048, request.sequences = 32;
  PlanRequest fewer = request;
  fewer.cluster = without(request.cluster, {1, 8});
  request.limits.idle = {1, 8};
  const Candidate idle = find_plan(request).best(), cut = find_plan(fewer).best();
  EXPECT_EQ(idle.prediction.tokens_per_s, cut.prediction.tokens_per_s);
  EXPECT_EQ(validate(idle.plan, request.model, request.cluster), std::vector<std::string>{});
  ASSERT_EQ(idle.memory.size(), 9U);
  for (const std::size_t d : {1U, 8U}) {
    EXPECT_EQ(idle.memory[d], 0);
    EXPECT_EQ(idle.prediction.busy[d], 0);
  }
}

}  // namespace
}  // namespace hetermoe
