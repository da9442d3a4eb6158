#include "hetermoe/placement/node_rows.h"

#include <gtest/gtest.h>

#include <bit>
#include <set>

#include "hetermoe/ops/exchange.h"
#include "hetermoe/ops/work.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

TEST(NodeRows, SourcesOfANodeHaveDifferentRelays) {
  Plan plan;
  plan.row_nodes = {0, 0, 0, 1, 1, 2};
  plan.groups.resize(1);
  plan.groups[0].devices = {0, 1, 2, 3, 4, 5};
  const NodeRows nodes(plan, 0, {1, 2, 3, 4, 5});
  EXPECT_EQ(nodes.owners(), (std::vector<std::vector<std::size_t>>{{0, 1}, {2, 3}, {4}}));
  EXPECT_EQ(nodes.node_of(3), 1u);
  EXPECT_TRUE(nodes.any());
  EXPECT_EQ(nodes.relay(0, 0), std::nullopt);  // on the node of its source
  EXPECT_EQ(nodes.relay(0, 2), std::nullopt);  // an owner that is alone
  EXPECT_EQ(nodes.relay(0, 1), std::optional<std::size_t>(2));
  EXPECT_EQ(nodes.relay(1, 1), std::optional<std::size_t>(3));
  EXPECT_EQ(nodes.relay(2, 1), std::optional<std::size_t>(2));  // more sources than owners
  EXPECT_EQ(nodes.relay(4, 0), std::optional<std::size_t>(1));
  EXPECT_FALSE(NodeRows(plan, 0, {0, 3, 5}).any());
}

/// A step of ep on two nodes of two devices.
struct Scene {
  Scene(i64 num_experts, i64 top_k) {
    model = test::make_model({.num_layers = 1});
    model.num_experts = num_experts, model.top_k = top_k;
    StrategyRequest request;
    request.seq_len = 8, request.sequences = 4, request.microbatches = 1;
    plan = find_strategy("ep").make(model, cluster, request);
    plan.row_nodes = nodes_of_devices(cluster);
  }
  Cluster cluster = test::make_cluster({2, 2});
  ModelConfig model;
  Plan plan;
};

/// Every set of k experts is as likely as any other.
TEST(NodeRows, ExpectedRowsAreThoseOfAllChoices) {
  for (const auto& [num_experts, top_k] : std::vector<std::pair<i64, i64>>{{8, 2}, {6, 3}, {7, 2}, {8, 1}}) {
    const Scene scene(num_experts, top_k);
    const Placement placement(scene.plan, scene.model, {});
    const ExchangeLoad load = ExpectedRouting(scene.model).exchange(placement, 0, 0, 0, 0);
    const LayerOwners& owners = scene.plan.groups[0].layers[0].experts;
    std::vector<double> nodes(2, 0);
    double sets = 0;
    for (std::uint32_t chosen = 0; chosen < (1u << num_experts); ++chosen) {
      if (std::popcount(chosen) != top_k) continue;
      ++sets;
      std::set<NodeId> reached;
      for (i64 e = 0; e < num_experts; ++e)
        if ((chosen >> e & 1u) != 0)
          reached.insert(
              scene.plan.row_nodes[static_cast<std::size_t>(owners[static_cast<std::size_t>(e)][0].device)]);
      for (const NodeId node : reached) nodes[static_cast<std::size_t>(node)] += 1;
    }
    for (std::size_t n = 0; n < 2; ++n) EXPECT_NEAR(load.node_rows_per_token[n], nodes[n] / sets, 1e-12);
  }
}

/// 8 tokens a device, 4 experts, one a device, top-2: of 6 choices 5 reach a given node, 3 a given device.
TEST(NodeRows, BytesAreThoseOfBothExchanges) {
  Scene scene(4, 2);
  scene.plan.wire_forward = Wire::kFp32;
  const StepOptions step;
  const Placement placement(scene.plan, scene.model, step);
  const WorkModel work(placement, scene.model, scene.cluster);
  const ExchangeLoad load = ExpectedRouting(scene.model).exchange(placement, 0, 0, 0, 0);
  const std::vector<DeviceId> devices = {0, 1, 2, 3};
  const double row = 4.0 * static_cast<double>(scene.model.hidden), copy = 12, pick = 4, tokens = 8;
  const double for_owner = tokens / 2, union_rows = tokens * 5 / 6;
  Op op{.kind = OpKind::kDispatch, .layer = 0, .microbatch = 0};
  ASSERT_TRUE(goes_by_node(op, placement));
  const std::vector<PortBytes> there = work.port_bytes(op, devices, &load);
  ASSERT_EQ(there.size(), 8u);
  const double between = union_rows * row + 2 * for_owner * (copy + pick), inside = for_owner * (row + copy);
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_NEAR(there[d].net_out, between, 1e-9);  // to the other node
    EXPECT_NEAR(there[d].net_in, between, 1e-9);
    EXPECT_NEAR(there[d].local_out, inside, 1e-9);      // to its mate, straight
    EXPECT_NEAR(there[4 + d].local_out, inside, 1e-9);  // passed on for one source
    EXPECT_NEAR(there[4 + d].local_in, inside, 1e-9);
    EXPECT_EQ(there[4 + d].net_out, 0);
  }
  op.kind = OpKind::kCombine;
  const std::vector<PortBytes> back = work.port_bytes(op, devices, &load);
  for (std::size_t d = 0; d < 4; ++d) {
    EXPECT_NEAR(back[d].local_out, for_owner * row, 1e-9);  // for the sum
    EXPECT_NEAR(back[4 + d].net_out, union_rows * row, 1e-9);
    EXPECT_NEAR(back[4 + d].local_in, for_owner * row, 1e-9);
  }
}

}  // namespace
}  // namespace hetermoe
