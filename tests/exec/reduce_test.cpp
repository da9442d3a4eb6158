#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/plan/offload.h"
#include "tests/support/fast_nodes.h"
#include "tests/support/sent_bytes.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

/// A state on all devices: expert parallelism.
Rig ep_rig(RigOptions options, const Cluster& cluster, bool gathers = false,
           WireReduce wire = WireReduce::kFp32) {
  const ModelConfig model = load_model("tiny");
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  if (gathers) shard_weights(plan);
  plan.wire_reduce = wire;
  return Rig(model, cluster, plan, std::move(options));
}

void run_step(Rig& rig) {
  rig.load(lively_values(rig.model()));
  rig.executor().run(random_input(rig.plan(), rig.model()));
}

Sent run_reduces(const Cluster& cluster, bool gathers, WireReduce wire = WireReduce::kFp32) {
  Sent sent;
  std::mutex mutex;
  RigOptions options;
  options.on_send = sent_counter(sent, mutex, cluster, [](const ExchangeCall& call) {
    return call.name.starts_with("reduce") || call.name.starts_with("all_gather");
  });
  Rig rig = ep_rig(std::move(options), cluster, gathers, wire);
  run_step(rig);
  const WorkModel work(rig.placement(), rig.model(), rig.cluster());
  for (OpId id = 0; id < rig.schedule().num_ops(); ++id) {
    const Op& op = rig.schedule().ops[static_cast<std::size_t>(id)];
    if (row_of(op.kind).participants != Participants::kStateDevices) continue;
    std::vector<DeviceId> participants;
    for (const LaneId lane : rig.schedule().lanes_of(id)) participants.push_back(device_of(lane));
    sent.add_priced(work, op, participants, nullptr);
  }
  return sent;
}

using Exchange = std::pair<OpId, i32>;  ///< op and round

/// [device] its exchanges of a step, in the order of their turns.
std::map<DeviceId, std::vector<Exchange>> exchanges_by_turn(const Cluster& cluster) {
  std::map<DeviceId, std::map<i64, Exchange>> by_turn;
  std::mutex mutex;
  RigOptions options;
  options.on_send = [&](const ExchangeCall& call, std::vector<Message>&) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(by_turn[call.self].emplace(call.turn, Exchange{call.op, call.round}).second) << call.name;
  };
  Rig rig = ep_rig(std::move(options), cluster);
  run_step(rig);
  std::map<DeviceId, std::vector<Exchange>> all;
  for (const auto& [device, exchanges] : by_turn) {
    EXPECT_EQ(exchanges.rbegin()->first, static_cast<i64>(exchanges.size()) - 1) << "turns without a gap";
    for (const auto& [turn, exchange] : exchanges) all[device].push_back(exchange);
  }
  return all;
}

/// Where transports take turns, two devices that meet in another order wait for each other for ever.
void expect_one_order(const Cluster& cluster) {
  const auto all = exchanges_by_turn(cluster);
  ASSERT_EQ(all.size(), 4U);
  i64 between = 0;
  for (const auto& [device, exchanges] : all) {
    std::map<Exchange, std::size_t> position;
    for (std::size_t i = 0; i < exchanges.size(); ++i) position[exchanges[i]] = i;
    for (const auto& [exchange, at] : position) {
      if (exchange.second == 0) continue;
      const std::size_t first = position.at({exchange.first, 0});
      EXPECT_LT(first, at);
      between += static_cast<i64>(at - first) - 1;
    }
    for (const auto& [other, theirs] : all) {
      std::vector<std::size_t> common;
      for (const Exchange& exchange : theirs) {
        if (position.contains(exchange)) common.push_back(position[exchange]);
      }
      EXPECT_TRUE(std::is_sorted(common.begin(), common.end())) << device << " and " << other;
    }
  }
  EXPECT_GT(between, 0) << "transfers between the exchanges of a reduce do not wait for its peers";
}

TEST(Reduce, AllDevicesTakeTheTurnsOfItsExchangesInOneOrder) {
  expect_one_order(load_cluster("demo"));
  expect_one_order(with_fast_nodes("demo"));
}

/// Parts are whole numbers of elements, which the price does not round.
void expect_priced(const Cluster& cluster, std::size_t num_exchanges, WireReduce wire = WireReduce::kFp32) {
  for (const bool gathers : {false, true}) {
    const Sent sent = run_reduces(cluster, gathers, wire);
    EXPECT_EQ(sent.most_exchanges, gathers && num_exchanges > 1 ? num_exchanges / 2 : num_exchanges);
    EXPECT_EQ(sent.counted.size(), static_cast<std::size_t>(cluster.num_devices()));
    ASSERT_EQ(sent.priced.size(), sent.counted.size());
    for (const auto& [device, bytes] : sent.counted) {
      const SentBytes& priced = sent.priced.at(device);
      EXPECT_NEAR(bytes.network / priced.network, 1, 0.02) << "device " << device;
      if (priced.local > 0) {
        EXPECT_NEAR(bytes.local / priced.local, 1, 0.02) << "device " << device;
      } else {
        EXPECT_EQ(bytes.local, 0) << "device " << device;
      }
    }
  }
}

TEST(Reduce, SendsWhatItIsPricedAt) { expect_priced(load_cluster("demo"), 1); }

TEST(Reduce, InTwoLevelsSendsWhatItIsPricedAt) {
  expect_priced(with_fast_nodes("demo"), 4);
  expect_priced(uneven_nodes(), 4);
}

TEST(Reduce, InSixteenBitsSendsWhatItIsPricedAt) {
  expect_priced(load_cluster("demo"), 1, WireReduce::kBf16);
  expect_priced(with_fast_nodes("demo"), 4, WireReduce::kBf16);
  expect_priced(uneven_nodes(), 4, WireReduce::kBf16);
}

/// Sums travel in 2 bytes in place of 4, and are told in 4: three quarters of all.
TEST(Reduce, InSixteenBitsHalfOfTheFirstHalfIsSent) {
  for (const Cluster& cluster : {load_cluster("demo"), with_fast_nodes("demo")}) {
    const Sent wide = run_reduces(cluster, false), narrow = run_reduces(cluster, false, WireReduce::kBf16);
    for (const auto& [device, bytes] : wide.counted)
      EXPECT_NEAR(narrow.counted.at(device).network / bytes.network, 0.75, 0.01) << "device " << device;
  }
}

/// A node's port carries what its devices do not own once in each direction, not once for each of them.
TEST(Reduce, InTwoLevelsANodeSendsAStateOnce) {
  const auto of_nodes = [](const Cluster& cluster) {
    std::map<NodeId, double> sent;
    for (const auto& [device, bytes] : run_reduces(cluster, false).counted)
      sent[cluster.node_of(device)] += bytes.network;
    return sent;
  };
  const std::map<NodeId, double> at_once = of_nodes(load_cluster("demo")),
                                 levels = of_nodes(with_fast_nodes("demo"));
  for (const auto& [node, bytes] : at_once)
    EXPECT_NEAR(levels.at(node) / bytes, 0.5, 0.01) << "node " << node;
}

}  // namespace
}  // namespace hetermoe::testing
