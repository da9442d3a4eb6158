#include <gtest/gtest.h>

#include <mutex>

#include "hetermoe/ops/exchange.h"
#include "hetermoe/plan/row_nodes.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/sent_bytes.h"
#include "tests/support/strategy_plans.h"

// Rows that go once to each node (Plan::row_nodes).
namespace hetermoe::testing {
namespace {

Plan plan_by_node(const ModelConfig& model, const Cluster& cluster, Recompute recompute = Recompute::kLocal) {
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  plan.row_nodes = nodes_of_devices(cluster);
  plan.chunks = 2;
  plan.recompute = recompute;
  return plan;
}

bool carries_rows(const ExchangeCall& call) {
  const bool dispatch = call.name.starts_with("dispatch");
  // The first exchange of dispatch.F tells sizes.
  return call.name.starts_with("combine") ||
         (dispatch && !(call.name.starts_with("dispatch.F") && call.round == 0));
}

Sent run_rows(const Cluster& cluster, const Plan& plan, const ModelConfig& model) {
  Sent sent;
  std::mutex mutex;
  RigOptions options;
  options.on_send = sent_counter(sent, mutex, cluster, carries_rows);
  Rig rig(model, cluster, plan, std::move(options));
  rig.load(lively_values(model));
  rig.executor().run(random_input(plan, model));
  const WorkModel work(rig.placement(), model, cluster);
  const RecordedRouting routing = rig.executor().recorded_routing();
  for (OpId id = 0; id < rig.schedule().num_ops(); ++id) {
    const Op& op = rig.schedule().ops[static_cast<std::size_t>(id)];
    if (row_of(op.kind).participants != Participants::kExchange || op.kind == OpKind::kTally) continue;
    const ExchangeLoad load = routing.exchange(rig.placement(), op.group, op.layer, op.microbatch, op.chunk);
    sent.add_priced(work, op, participants(op, rig.placement()), &load);
  }
  return sent;
}

// Claim (RandomPlans.EqualTheReference, NodeRowsRun.*, NodeRows.*, Mpi.RowsByNodesHaveTheBitsOfOneProcess,
// GpuPath.RowsByNodesEqualTheReference, FoldedStep.GivesTheTimesOfTheFullSchedule): a token that goes once to
// each node: equal results, bytes as priced, expected rows of all choices, the same over processes, and as a
// GPU takes it; wrong picks and counts are named; folded simulation is exact
TEST(NodeRowsRun, CountedBytesArePriced) {
  const ModelConfig model = load_model("tiny-olmoe");
  const Cluster cluster = uneven_nodes();
  for (const Recompute recompute : {Recompute::kLocal, Recompute::kResend, Recompute::kSelect}) {
    Plan plan = plan_by_node(model, cluster, recompute);
    const Sent by_node = run_rows(cluster, plan, model);
    plan.row_nodes.clear();
    const Sent straight = run_rows(cluster, plan, model);
    double network = 0, network_straight = 0;
    for (const auto& [device, priced] : by_node.priced) {
      EXPECT_DOUBLE_EQ(by_node.counted.at(device).network, priced.network) << device;
      EXPECT_DOUBLE_EQ(by_node.counted.at(device).local, priced.local) << device;
      network += priced.network;
    }
    for (const auto& [device, priced] : straight.priced) {
      EXPECT_DOUBLE_EQ(straight.counted.at(device).network, priced.network) << device;
      network_straight += priced.network;
    }
    EXPECT_LT(network, 0.95 * network_straight);
  }
}

TEST(NodeRowsRun, CountedBytesOfGroupsArePriced) {
  const ModelConfig model = load_model("tiny-olmoe");
  const Cluster cluster = uneven_nodes();
  for (const bool by_node : {false, true}) {
    Plan plan = plan_by_node(model, cluster);
    plan.wire_forward = Wire::kFp8Row, plan.wire_backward = Wire::kFp8Group;
    if (!by_node) plan.row_nodes.clear();
    const Sent sent = run_rows(cluster, plan, model);
    EXPECT_FALSE(sent.priced.empty());
    for (const auto& [device, priced] : sent.priced) {
      EXPECT_DOUBLE_EQ(sent.counted.at(device).network, priced.network) << device;
      EXPECT_DOUBLE_EQ(sent.counted.at(device).local, priced.local) << device;
    }
  }
}

/// A row that no token of the source has would be memory of something else.
TEST(NodeRowsRun, WrongPicksAndCountsAreNamed) {
  const ModelConfig model = load_model("tiny-olmoe");
  const Cluster cluster = uneven_nodes();
  const Plan plan = plan_by_node(model, cluster);
  const auto error_of = [&](const RigOptions& options) {
    return error_of_step(model, cluster, plan, options);
  };
  EXPECT_EQ(error_of({}), "");
  RigOptions picks;
  picks.on_send = [](const ExchangeCall& call, std::vector<Message>& out) {
    if (call.name != "dispatch.F l0 m0" || call.round != 1 || call.self != 0) return;
    for (Message& message : out)
      if (message.tensors.size() > 4 && message.tensors[1].numel() > 0) message.tensors[1][0] = 1'000'000;
  };
  EXPECT_NE(error_of(picks).find("pick of row 0: got 1000000, expected 0 to "), std::string::npos);
  RigOptions counts;
  counts.on_send = [](const ExchangeCall& call, std::vector<Message>& out) {
    if (call.name != "dispatch.F l0 m0" || call.round != 0 || call.self != 0) return;
    for (Message& message : out) {
      message.tensors[0] = message.tensors[0].clone();
      message.tensors[0][-1] = 1'000'000;
    }
  };
  EXPECT_NE(error_of(counts).find("rows for a node: got 1000000, expected "), std::string::npos);
}

}  // namespace
}  // namespace hetermoe::testing
