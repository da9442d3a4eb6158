#include "hetermoe/planner/host_use.h"

#include <gtest/gtest.h>

#include "hetermoe/model/op_cost.h"
#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/memory_estimate.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

/// Two cards with room for `gib`, in one node with a host.
Cluster two_cards(double gib, double host_gib) {
  Cluster cluster = load_cluster("demo");
  cluster.devices.resize(2);
  cluster.nodes.resize(1);
  for (DeviceType& type : cluster.types) type.memory_gib = gib;
  if (host_gib > 0) cluster.nodes[0].host = NodeHost{.memory_gib = host_gib};
  return cluster;
}

PlanRequest request_of(const Cluster& cluster) {
  PlanRequest request;
  request.model = load_model("olmoe4");
  request.cluster = cluster;
  request.seq_len = 512;
  request.sequences = 4;
  return request;
}

TEST(HostUse, MakesRoomWhereNoPlanFitsWithout) {
  const Bytes all =
      real(count_parameters(load_model("olmoe4")).total) * state_bytes_per_parameter(2).total(1);
  const auto plan_with = [&](double share, double host_gib) {
    return find_plan(request_of(two_cards(share * all / kGiB / 2 / kUsableMemory + 1, host_gib)));
  };
  EXPECT_FALSE(uses_hosts(plan_with(1.6, 256).best().plan)) << "it fits without";
  for (const double share : {0.75, 0.3}) {
    EXPECT_FALSE(plan_with(share, 0).feasible());
    const PlanResult result = plan_with(share, 256);
    ASSERT_TRUE(result.feasible()) << share << ": " << result.infeasible;
    const Plan& plan = result.best().plan;
    EXPECT_TRUE(uses_hosts(plan));
    EXPECT_NE(result.explanation[0].find("live in host memory"), std::string::npos) << result.explanation[0];
    EXPECT_NE(result.explanation[1].find("% of the step"), std::string::npos) << result.explanation[1];
    const bool all_weights = home_of(plan.groups[0], UnitPart::kExperts, 3).weights == Residence::kHost;
    if (share < 0.5) {
      EXPECT_TRUE(all_weights) << "weights and gradients alone take a third";
    }
  }
}

TEST(HostUse, AHostThatIsTooSmallIsNamed) {
  const PlanResult result = find_plan(request_of(two_cards(6, 4)));
  EXPECT_FALSE(result.feasible());
  PlanRequest forbidden = request_of(two_cards(6, 256));
  EXPECT_TRUE(find_plan(forbidden).feasible());
  forbidden.limits.offload = false;
  EXPECT_FALSE(find_plan(forbidden).feasible());
}

/// A copy for each node, whatever the number of its devices.
TEST(HostUse, MemoryOfHostsCountsEachStateOnce) {
  Cluster cluster = load_cluster("demo");
  for (Node& node : cluster.nodes) node.host = NodeHost{.memory_gib = 64};
  const ModelConfig model = load_model("tiny");
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  use_dtype(plan, Dtype::kBf16);
  offload(plan, model, cluster, offload_entries(HostUse::kAll), "test");
  const ParamCounts counts = count_parameters(model);
  double shared = real(counts.embedding + counts.head), experts = 0;
  for (std::size_t l = 0; l < counts.attention_part.size(); ++l) {
    shared += real(counts.attention_part[l]);
    if (model.is_moe(static_cast<i64>(l))) experts += real(counts.expert * model.num_experts);
  }
  const std::vector<Bytes> memory = estimate_host_memory(plan, model, cluster);
  EXPECT_DOUBLE_EQ(memory[0] + memory[1], (2 * shared + experts) * 18);
  EXPECT_EQ(overfilled_host(plan, model, cluster), "");
  cluster.nodes[1].host->memory_gib = 1e-6;
  EXPECT_EQ(overfilled_host(plan, model, cluster).find("host of old (0 GiB) needs"), 0U);
}

}  // namespace
}  // namespace hetermoe::testing
