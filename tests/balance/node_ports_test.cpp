#include "hetermoe/balance/node_ports.h"

#include <gtest/gtest.h>

#include "hetermoe/cost/measured.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/schedule/plans.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

struct PortCase {
  ModelConfig model = test::make_model({.num_layers = 2, .num_experts = 24, .top_k = 4, .hidden = 64});
  Cluster cluster;
  Plan plan;
  std::unique_ptr<CostModel> cost;

  explicit PortCase(Cluster on, const std::string& strategy = "ep") : cluster(std::move(on)) {
    model.max_positions = 4096;
    StrategyRequest request;
    request.seq_len = 512;
    request.sequences = 32;
    request.microbatches = 2;
    plan = find_strategy(strategy).make(model, cluster, request);
    cost = make_cost(model, cluster, plan, {});
  }
};

/// What the cost model has at the ports of all nodes for the rows to the owners and back: [nodes] to it and
/// from it, of an exchange with even routing.
struct Priced {
  std::vector<Seconds> to, from;
};

Priced price_exchange(const PortCase& c, const Placement& placement, const std::vector<Phase>& phases) {
  const WorkModel work(placement, c.model, c.cluster);
  const ExchangeLoad even = ExpectedRouting(c.model).exchange(placement, 0, 0, 0, 0);
  std::vector<DeviceId> devices;
  for (DeviceId d = 0; d < c.cluster.num_devices(); ++d) devices.push_back(d);
  Priced out{std::vector<Seconds>(c.cluster.nodes.size(), 0),
             std::vector<Seconds>(c.cluster.nodes.size(), 0)};
  for (const OpKind kind : {OpKind::kDispatch, OpKind::kCombine}) {
    for (const Phase phase : phases) {
      Op op;
      op.kind = kind, op.phase = phase, op.group = 0, op.layer = 0, op.microbatch = 0;
      const std::vector<PortBytes> bytes = work.port_bytes(op, devices, &even);
      const TransferCost transfer = c.cost->transfer({op, devices, bytes});
      // Rows of dispatch.F and gradients of combine.B go to the owners.
      const bool to_owners = (kind == OpKind::kDispatch) != (phase == Phase::kBackward);
      for (const PortLoad& load : transfer.loads) {
        const auto node = static_cast<std::size_t>(load.port / 2);
        if (node >= c.cluster.nodes.size()) continue;
        const bool comes_in = load.port % 2 == 1;
        (comes_in == to_owners ? out.to : out.from)[node] += load.seconds;
      }
    }
  }
  return out;
}

void expect_prices(const PortCase& c, const std::vector<Phase>& phases) {
  const Placement placement(c.plan, c.model, {});
  constexpr Seconds kUnit = 3e-9;
  const std::vector<NodePort> ports = node_ports(*c.cost, placement, c.model, c.cluster, 0, 0, kUnit);
  ASSERT_EQ(ports.size(), c.cluster.nodes.size());
  const Priced priced = price_exchange(c, placement, phases);
  const ExchangeLoad even = ExpectedRouting(c.model).exchange(placement, 0, 0, 0, 0);
  const std::vector<DeviceId>& owners = placement.owners(0, 0);
  double all = 0, tokens = 0;
  std::vector<double> own(ports.size(), 0);
  for (std::size_t o = 0; o < owners.size(); ++o) {
    own[static_cast<std::size_t>(c.cluster.devices[static_cast<std::size_t>(owners[o])].node)] +=
        even.copies_at(o);
    all += even.copies_at(o);
  }
  for (std::size_t n = 0; n < ports.size(); ++n) {
    ASSERT_EQ(ports[n].node, static_cast<NodeId>(n));
    tokens += ports[n].tokens;
    // Every copy has the mean part of a row, but devices with more experts need fewer rows a copy.
    const Seconds in = ports[n].copy_s * kUnit * (1 - ports[n].tokens) * own[n],
                  out = ports[n].copy_s * kUnit * ports[n].tokens * (all - own[n]);
    EXPECT_NEAR(in, priced.to[n], 0.15 * priced.to[n]) << n;
    EXPECT_NEAR(out, priced.from[n], 0.15 * priced.from[n]) << n;
  }
  EXPECT_NEAR(tokens, 1, 1e-12);
}

// Claim (NodePorts.*, Reorder.CountsTheBusiestPort*, Reorder.ReachesTheBestOfAllOwnersWithPorts): reordering
// counts the busiest port, at the cost model's price, and reaches the best owners of small instances with
// ports
TEST(NodePorts, AreWhatTheCostModelHasForEvenRouting) {
  expect_prices(PortCase(load_cluster("o1")), {Phase::kForward, Phase::kBackward});
  expect_prices(PortCase(load_cluster("h100-v100")), {Phase::kForward, Phase::kBackward});
}

TEST(NodePorts, RowsThatAreSentAgainCount) {
  PortCase c(load_cluster("o1"));
  c.plan.recompute = Recompute::kResend;
  expect_prices(c, {Phase::kForward, Phase::kBackward, Phase::kRecompute});
}

TEST(NodePorts, ThereAreNoneInsideANode) {
  const PortCase c(testing::nodes_of_eight({{"H100", 8}}));
  ASSERT_EQ(c.cluster.nodes.size(), 1U);
  EXPECT_TRUE(node_ports(*c.cost, Placement(c.plan, c.model, {}), c.model, c.cluster, 0, 0, 1).empty());
}

TEST(NodePorts, NodesOfSourcesAloneHaveOne) {
  const PortCase c(load_cluster("o1"), "zebra");
  const Placement placement(c.plan, c.model, {});
  ASSERT_LT(placement.owners(0, 0).size(), c.cluster.devices.size());
  double tokens = 0;
  const std::vector<NodePort> ports = node_ports(*c.cost, placement, c.model, c.cluster, 0, 0, 1);
  for (const NodePort& port : ports) tokens += port.tokens;
  EXPECT_GT(ports.size(), placement.owners(0, 0).size());
  EXPECT_NEAR(tokens, 1, 1e-12);
}

}  // namespace
}  // namespace hetermoe
