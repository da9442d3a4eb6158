#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "hetermoe/cluster/cluster.h"
#include "hetermoe/cost/cost_model.h"
#include "hetermoe/plan/offload.h"
#include "tests/support/rig.h"
#include "tests/support/strategy_plans.h"

namespace hetermoe::testing {
namespace {

/// Expert parallelism over four devices, which all hold the attention parts.
Rig ep_rig(RigOptions options, bool gathers = false) {
  const ModelConfig model = load_model("tiny");
  const Cluster cluster = load_cluster("demo");
  Plan plan = find_strategy("ep").make(model, cluster, small_step());
  if (gathers) shard_weights(plan);
  return Rig(model, cluster, plan, std::move(options));
}

void run_step(Rig& rig) {
  rig.load(lively_values(rig.model()));
  rig.executor().run(random_input(rig.plan(), rig.model()));
}

/// Bytes that each device sends to others in collectives of states in one step, and what their price counts.
struct Sent {
  std::map<DeviceId, double> counted, priced;
};

Sent run_reduces(bool gathers) {
  Sent sent;
  std::mutex mutex;
  RigOptions options;
  options.on_send = [&](const ExchangeCall& call, std::vector<Message>& out) {
    if (!call.name.starts_with("reduce") && !call.name.starts_with("all_gather")) return;
    const std::lock_guard lock(mutex);
    for (std::size_t i = 0; i < out.size(); ++i) {
      if (call.participants[i] == call.self) continue;
      for (const at::Tensor& tensor : out[i].tensors)
        sent.counted[call.self] += static_cast<double>(tensor.nbytes());
    }
  };
  Rig rig = ep_rig(std::move(options), gathers);
  run_step(rig);
  const WorkModel work(rig.placement(), rig.model(), rig.cluster());
  for (OpId id = 0; id < rig.schedule().num_ops(); ++id) {
    const Op& op = rig.schedule().ops[static_cast<std::size_t>(id)];
    if (traits(op.kind).participants != Participants::kStateDevices) continue;
    std::vector<DeviceId> participants;
    for (const LaneId lane : rig.schedule().lanes_of(id)) participants.push_back(device_of(lane));
    const std::vector<PortBytes> bytes = work.port_bytes(op, participants, nullptr);
    for (std::size_t i = 0; i < participants.size(); ++i)
      sent.priced[participants[i]] += bytes[i].net_out + bytes[i].local_out;
  }
  return sent;
}

using Exchange = std::pair<OpId, i32>;  ///< op and round

/// [device] its exchanges of a step, in the order of their turns.
std::map<DeviceId, std::vector<Exchange>> exchanges_by_turn() {
  std::map<DeviceId, std::map<i64, Exchange>> by_turn;
  std::mutex mutex;
  RigOptions options;
  options.on_send = [&](const ExchangeCall& call, std::vector<Message>&) {
    const std::lock_guard lock(mutex);
    EXPECT_TRUE(by_turn[call.self].emplace(call.turn, Exchange{call.op, call.round}).second) << call.name;
  };
  Rig rig = ep_rig(std::move(options));
  run_step(rig);
  std::map<DeviceId, std::vector<Exchange>> all;
  for (const auto& [device, exchanges] : by_turn) {
    EXPECT_EQ(exchanges.rbegin()->first, static_cast<i64>(exchanges.size()) - 1) << "turns without a gap";
    for (const auto& [turn, exchange] : exchanges) all[device].push_back(exchange);
  }
  return all;
}

/// Where transports take turns, two devices that meet in another order wait for each other for ever.
TEST(Reduce, AllDevicesTakeTheTurnsOfItsExchangesInOneOrder) {
  const auto all = exchanges_by_turn();
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

/// Parts are whole numbers of elements, which the price does not round.
TEST(Reduce, SendsWhatItIsPricedAt) {
  for (const bool gathers : {false, true}) {
    const Sent sent = run_reduces(gathers);
    EXPECT_EQ(sent.counted.size(), 4U);
    ASSERT_EQ(sent.priced.size(), sent.counted.size());
    for (const auto& [device, bytes] : sent.counted)
      EXPECT_NEAR(bytes / sent.priced.at(device), 1, 0.01) << "device " << device;
  }
}

}  // namespace
}  // namespace hetermoe::testing
