#include <gtest/gtest.h>

#include "hetermoe/ops/work.h"
#include "hetermoe/schedule/schedule.h"
#include "tests/support/strategy_plans.h"

// What the sum of a state's gradients sends, by closed forms.
namespace hetermoe::testing {
namespace {

Cluster nodes_of(const std::string& nodes) {
  return parse_cluster(parse_yaml("{name: test, local_gb_s: 1000, nodes: " + nodes + "}", "test"), "test ");
}

/// Bytes that device 0 sends of each parameter of the embedding, exchange by exchange: of its sum, and then
/// of telling.
std::vector<double> sent_of_parameter(const Cluster& cluster, WireReduce wire, bool shards_optimizer) {
  const ModelConfig model = tiny_mixtral();
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  use_dtype(plan, Dtype::kBf16);
  plan.wire_reduce = wire;
  plan.shard_optimizer = shards_optimizer;
  const Placement placement(plan, model, {});
  const WorkModel work(placement, model, cluster);
  const std::vector<OpKind> kinds = shards_optimizer
                                        ? std::vector<OpKind>{OpKind::kReduceScatter, OpKind::kAllGather}
                                        : std::vector<OpKind>{OpKind::kReduce};
  std::vector<double> sent;
  for (const OpKind kind : kinds) {
    Op op;
    op.kind = kind;
    op.state = 0;
    const std::vector<PlaceId>& devices = placement.states()[0].devices;
    const std::vector<PortBytes> bytes = work.port_bytes(op, devices, nullptr);
    for (std::size_t i = 0; i < bytes.size(); i += devices.size())
      sent.push_back((bytes[i].net_out + bytes[i].local_out) / work.trained_params(0));
  }
  return sent;
}

double sum_of_sent(const Cluster& cluster, WireReduce wire, bool shards_optimizer) {
  double sum = 0;
  for (const double bytes : sent_of_parameter(cluster, wire, shards_optimizer)) sum += bytes;
  return sum;
}

/// 8, 6 and 4 bytes times (d - 1) / d.
TEST(ReduceBytes, OfAParameterFollowFromTheWires) {
  for (const auto& [cluster, wide, narrow, both] :
       {std::tuple{nodes_of("[{devices: [A40 x2]}]"), 4.0, 3.0, 2.0},
        std::tuple{nodes_of("[{devices: [A40 x4]}]"), 6.0, 4.5, 3.0}}) {
    EXPECT_DOUBLE_EQ(sum_of_sent(cluster, WireReduce::kFp32, false), wide);
    EXPECT_DOUBLE_EQ(sum_of_sent(cluster, WireReduce::kBf16, false), narrow);
    // Updated weights are told in 16 bits.
    EXPECT_DOUBLE_EQ(sum_of_sent(cluster, WireReduce::kBf16, true), both);
  }
}

/// Three nodes of four devices. Of 96 bytes of gradients inside a node 72, between nodes 16, and back; what
/// is summed in half as many.
TEST(ReduceBytes, InTwoLevelsBothLevelsOfTheSumAreHalved) {
  const Cluster cluster = nodes_of("[{devices: [A40 x4]}, {devices: [A40 x4]}, {devices: [A40 x4]}]");
  const auto of_96 = [&](WireReduce wire) {
    std::vector<double> sent = sent_of_parameter(cluster, wire, false);
    for (double& bytes : sent) bytes *= 96.0 / 4;
    return sent;
  };
  const std::vector<double> wide = of_96(WireReduce::kFp32), narrow = of_96(WireReduce::kBf16);
  const std::vector<double> expected = {72, 16, 16, 72}, halved = {36, 8, 16, 72};
  ASSERT_EQ(wide.size(), 4U);
  ASSERT_EQ(narrow.size(), 4U);
  for (std::size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(wide[i], expected[i], 1e-9) << i;
    EXPECT_NEAR(narrow[i], halved[i], 1e-9) << i;
  }
}

/// Seconds inside nodes of 8 at 450 GB/s, over seconds between them at 50 GB/s for each device: 7 d / 9 (d -
/// 1).
TEST(ReduceBytes, TimesInsideAndBetweenNodesHaveThePublishedRatio) {
  for (const auto& [nodes, expected] : {std::pair{2, 1.556}, std::pair{4, 1.037}, std::pair{8, 0.889}}) {
    std::string text;
    for (int n = 0; n < nodes; ++n) text += std::string(n > 0 ? ", " : "") + "{devices: [A40 x8]}";
    const std::vector<double> sent = sent_of_parameter(nodes_of("[" + text + "]"), WireReduce::kFp32, false);
    ASSERT_EQ(sent.size(), 4U) << nodes;
    EXPECT_NEAR((sent[0] + sent[3]) / 450 / ((sent[1] + sent[2]) / 50), expected, 5e-4) << nodes;
  }
}

}  // namespace
}  // namespace hetermoe::testing
