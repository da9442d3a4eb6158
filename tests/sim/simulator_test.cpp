#include "hetermoe/sim/simulator.h"

#include <gtest/gtest.h>

#include "tests/golden/constant_cost.h"
#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

/// A schedule with its costs, written by hand.
class Hand {
 public:
  explicit Hand(i32 num_devices) {
    schedule_.num_devices = num_devices;
    costs_.load_begin = {0};
    costs_.num_ports = 4;
    costs_.interference.assign(static_cast<std::size_t>(num_devices), 0);
  }

  void set_interference(DeviceId device, double share) {
    costs_.interference[static_cast<std::size_t>(device)] = share;
  }

  OpId experts(DeviceId device, Seconds seconds, const std::vector<OpId>& deps) {
    return add({OpKind::kExperts}, {lane_of(device, Queue::kCompute)}, deps, {0, {}}, seconds);
  }
  void set_tiles(i32 tiles) { costs_.tiles = tiles; }
  OpId compute(DeviceId device, Seconds seconds, const std::vector<OpId>& deps = {}) {
    return add({OpKind::kAttention}, {lane_of(device, Queue::kCompute)}, deps, {0, {}}, seconds);
  }
  OpId transfer(const std::vector<LaneId>& lanes, const TransferCost& cost,
                const std::vector<OpId>& deps = {}) {
    return add({OpKind::kDispatch}, lanes, deps, cost, cost.seconds());
  }
  const OpTimes& run() { return simulator_.run(schedule_, costs_); }

 private:
  OpId add(const Op& op, const std::vector<LaneId>& lanes, const std::vector<OpId>& deps,
           const TransferCost& cost, Seconds seconds) {
    schedule_.ops.push_back(op);
    schedule_.lanes.insert(schedule_.lanes.end(), lanes.begin(), lanes.end());
    schedule_.lane_begin.push_back(static_cast<i64>(schedule_.lanes.size()));
    schedule_.deps.insert(schedule_.deps.end(), deps.begin(), deps.end());
    schedule_.dep_begin.push_back(static_cast<i64>(schedule_.deps.size()));
    costs_.seconds.push_back(seconds);
    costs_.latency.push_back(is_compute(op.kind) ? 0 : cost.latency);
    costs_.loads.insert(costs_.loads.end(), cost.loads.begin(), cost.loads.end());
    costs_.load_begin.push_back(static_cast<i64>(costs_.loads.size()));
    return schedule_.num_ops() - 1;
  }

  Schedule schedule_;
  OpCosts costs_;
  Simulator simulator_;
};

LaneId to_expert(DeviceId device) { return lane_of(device, Queue::kToExpert); }
LaneId to_attention(DeviceId device) { return lane_of(device, Queue::kToAttention); }

TEST(Simulator, LanesKeepTheirOrderAndOpsWaitForDependencies) {
  Hand hand(2);
  const OpId late = hand.compute(1, 3);
  const OpId first = hand.transfer({to_expert(0), to_expert(1)}, {1, {}}, {late});
  const OpId behind =
      hand.transfer({to_expert(0)}, {1, {}});  // ready at once, but behind `first` on its lane
  const OpTimes& times = hand.run();
  EXPECT_EQ(times.start[static_cast<std::size_t>(first)], 3);
  EXPECT_EQ(times.start[static_cast<std::size_t>(behind)], 4);
  EXPECT_EQ(times.step, 5);
}

/// Rows of four tiles: 1 s of latency, then 1 s each.
TEST(SimulatorTiles, ExpertsBeginWithTheFirstTileAndEndOneAfterTheLast) {
  for (const auto& [seconds, tiles, start, end] : std::vector<std::tuple<Seconds, i32, Seconds, Seconds>>{
           {8, 0, 5, 13}, {8, 1, 5, 13}, {8, 4, 2, 10}, {8, 8, 1.5, 9.5}, {1, 4, 2, 5.25}, {4, 4, 2, 6}}) {
    Hand hand(2);
    hand.set_tiles(tiles);
    const OpId rows = hand.transfer({to_expert(0), to_expert(1)}, {1, {{0, 4.0}}});
    const OpId experts = hand.experts(1, seconds, {rows});
    const OpId after = hand.compute(1, 1, {experts});
    const OpTimes& times = hand.run();
    const auto name = testing::Message() << seconds << " s, tiles " << tiles;
    EXPECT_DOUBLE_EQ(times.end[static_cast<std::size_t>(rows)], 5) << name;
    EXPECT_DOUBLE_EQ(times.start[static_cast<std::size_t>(experts)], start) << name;
    EXPECT_DOUBLE_EQ(times.end[static_cast<std::size_t>(experts)], end) << name;
    EXPECT_DOUBLE_EQ(times.start[static_cast<std::size_t>(after)], end) << name;
  }
}

/// The port is shared while the first tile travels, and compute is slowed down by the transfer.
TEST(SimulatorTiles, GoWithSharedPortsAndSlowerCompute) {
  Hand hand(2);
  hand.set_tiles(4);
  hand.set_interference(1, 0.5);
  const OpId rows = hand.transfer({to_expert(1)}, {0, {{0, 4.0}}});
  hand.transfer({to_expert(0)}, {0, {{0, 2.0}}});
  const OpId experts = hand.experts(1, 4, {rows});
  const OpTimes& times = hand.run();
  // Both at half of the port until 4, then the rest of the rows alone until 6. The first tile is there at 2.
  EXPECT_DOUBLE_EQ(times.end[static_cast<std::size_t>(rows)], 6);
  EXPECT_DOUBLE_EQ(times.start[static_cast<std::size_t>(experts)], 2);
  EXPECT_DOUBLE_EQ(times.end[static_cast<std::size_t>(experts)], 8);  // 4 s at half speed, then 2
}

TEST(SimulatorTiles, ATransferWithoutBytesHasNone) {
  Hand hand(1);
  hand.set_tiles(4);
  const OpId rows = hand.transfer({to_expert(0)}, {1, {}});
  const OpId experts = hand.experts(0, 2, {rows});
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.start[static_cast<std::size_t>(experts)], 1);
  EXPECT_DOUBLE_EQ(times.step, 3);
}

TEST(Simulator, TwoTransfersShareAPortEvenly) {
  Hand hand(2);
  hand.transfer({to_expert(0)}, {0, {{0, 1.0}}});
  hand.transfer({to_expert(1)}, {0, {{0, 1.0}}});
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.end[0], 2);
  EXPECT_DOUBLE_EQ(times.end[1], 2);
}

TEST(Simulator, TheLongerTransferSpeedsUpWhenTheShorterEnds) {
  Hand hand(2);
  hand.transfer({to_expert(0)}, {0, {{0, 1.0}}});
  hand.transfer({to_expert(1)}, {0, {{0, 0.5}}});
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.end[1], 1);    // half speed for 0.5 s of work
  EXPECT_DOUBLE_EQ(times.end[0], 1.5);  // 0.5 s done by then, the rest at full speed
}

TEST(Simulator, LatencyUsesNoPort) {
  Hand hand(2);
  hand.transfer({to_expert(0)}, {0.5, {{0, 1.0}}});
  hand.transfer({to_expert(1)}, {0, {{0, 1.0}}});
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.end[1], 1.5);  // alone until 0.5, then half speed for the other half
  EXPECT_DOUBLE_EQ(times.end[0], 2.0);  // 0.5 done at 1.5
}

/// Op 0 needs a quarter of port 0, because port 1 holds it back; op 1 gets the other three quarters.
TEST(Simulator, WhatOneTransferCannotUseGoesToTheOther) {
  Hand hand(2);
  hand.transfer({to_expert(0)}, {0, {{0, 0.25}, {1, 1.0}}});
  hand.transfer({to_expert(1)}, {0, {{0, 1.0}}});
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.end[0], 1);
  EXPECT_DOUBLE_EQ(times.end[1], 1.25);
}

TEST(Simulator, ThreeTransfersOnePortOneSmall) {
  Hand hand(3);
  hand.transfer({to_expert(0)}, {0, {{0, 0.2}, {1, 1.0}}});  // demand 0.2
  hand.transfer({to_expert(1)}, {0, {{0, 1.0}}});            // 0.4 each
  hand.transfer({to_expert(2)}, {0, {{0, 1.0}}});
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.end[0], 1);
  EXPECT_NEAR(times.end[1], 2.2, 1e-12);  // 0.4 done at 1, then half speed
  EXPECT_NEAR(times.end[2], 2.2, 1e-12);
}

TEST(Simulator, TheTightestPortDecides) {
  Hand hand(3);
  hand.transfer({to_expert(0)}, {0, {{0, 1.0}, {1, 1.0}}});
  hand.transfer({to_expert(1)}, {0, {{0, 1.0}}});
  hand.transfer({to_expert(2)}, {0, {{1, 0.25}}});
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.end[2], 0.5);
  EXPECT_DOUBLE_EQ(times.end[0], 2);  // port 0 keeps it at half speed all the time
  EXPECT_DOUBLE_EQ(times.end[1], 2);
}

/// As folded transfers do that load their ports unevenly: each is held back by the larger of its loads.
TEST(Simulator, ATransferMayUseAPortTwice) {
  Hand hand(1);
  hand.transfer({to_expert(0)}, {0, {{0, 0.5}, {0, 1.0}}});
  hand.compute(0, 3);
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.end[0], 2);
  EXPECT_DOUBLE_EQ(times.step, 3);
}

TEST(Simulator, TransfersSlowComputeOfTheirDevices) {
  Hand hand(3);
  hand.set_interference(0, 0.5);
  hand.compute(0, 1);
  hand.compute(1, 1);
  hand.transfer({to_expert(0), to_expert(1), to_expert(2)}, {0, {{0, 0.5}}});
  hand.transfer({to_attention(0), to_attention(2)}, {0, {{1, 0.8}}});
  const OpTimes& times = hand.run();
  EXPECT_DOUBLE_EQ(times.end[0], 1.4);  // half speed until the last transfer ends at 0.8
  EXPECT_DOUBLE_EQ(times.end[1], 1);
}

TEST(Simulator, FullInterferenceStopsComputeUntilTheTransferEnds) {
  Hand hand(1);
  hand.set_interference(0, 1);
  hand.compute(0, 1);
  hand.transfer({to_expert(0)}, {0, {{0, 2.0}}});
  EXPECT_DOUBLE_EQ(hand.run().step, 3);
}

TEST(Simulator, OpsWithoutDurationEndAtOnce) {
  Hand hand(1);
  const OpId a = hand.compute(0, 0);
  const OpId b = hand.transfer({to_expert(0)}, {0, {{0, 0.0}}}, {a});
  hand.compute(0, 0, {b});
  EXPECT_EQ(hand.run().step, 0);
}

TEST(Simulator, ForgetsTheRunBefore) {
  Hand large(3), small(1);
  large.transfer({to_expert(0)}, {0, {{0, 1.0}}});
  large.transfer({to_expert(1)}, {0, {{0, 1.0}}});
  const Seconds first = large.run().step, second = large.run().step;
  EXPECT_EQ(first, second);
}

TEST(MakeTimeline, OneSpanPerOpAndDevice) {
  const ModelConfig model = test::make_model({.num_layers = 1});
  const Cluster cluster = test::make_cluster({2, 1});
  const Plan plan = test::make_zebra_plan(model, cluster, {2, 1, 1});
  test::ConstantCost cost;
  cost.attention = 1;
  cost.transfer_time = 0.5;
  cost.first_expert_device = 2;
  const test::SimulatedPlan s = test::simulate(plan, model, cluster, cost);
  const Timeline timeline = make_timeline(s.schedule, s.times, plan, cluster, "simulated");
  EXPECT_EQ(timeline.spans.size(), s.schedule.lanes.size());
  EXPECT_EQ(timeline.step, s.times.step);
  const OpId dispatch = test::find_op(s.schedule, "dispatch.F l0 m0");
  std::vector<Span> spans;
  for (const Span& span : timeline.spans) {
    if (span.op == dispatch) spans.push_back(span);
  }
  ASSERT_EQ(spans.size(), 3u);
  EXPECT_EQ(spans[2].device, 2);
  EXPECT_EQ(spans[2].start, 1);
  EXPECT_EQ(spans[2].end, 1.5);
  EXPECT_EQ(timeline.ops[static_cast<std::size_t>(dispatch)].queue, "to_expert");
  EXPECT_EQ(timeline.devices[2].role, "expert");
}

}  // namespace
}  // namespace hetermoe
