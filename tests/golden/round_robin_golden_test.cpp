#include <gtest/gtest.h>

#include <map>
#include <random>

#include "hetermoe/plan/offload.h"
#include "hetermoe/planner/strategies/round_clock.h"
#include "hetermoe/planner/strategies/round_robin_plan.h"
#include "tests/golden/layer_seconds.h"
#include "tests/schedule/plans.h"

// Makespans of round-robin steps: RoundPipe (arXiv 2604.27085).
namespace hetermoe {
namespace {

/// Seconds of a step on devices of one node.
Seconds makespan(const TurnTimes& times, const Rounds& rounds, i32 devices, i64 microbatches) {
  const auto layers = static_cast<i64>(times.backward.size()) - 1;
  test::ModelShape shape{.num_layers = layers};
  for (i64 l = 0; l < layers; ++l) shape.dense.push_back(l);
  const ModelConfig model = test::make_model(shape);
  const Cluster cluster = test::make_cluster({devices});
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = request.microbatches = microbatches;
  Plan plan = find_strategy("ep").make(model, cluster, request);
  deal_turns(plan, rounds);
  EXPECT_TRUE(test::no_faults(validate(plan, model, cluster)));
  LayerSeconds cost;
  cost.times = times;
  const Schedule schedule = build_schedule(plan, model);
  EXPECT_TRUE(test::no_faults(validate(schedule, plan, model)));
  Simulator simulator;
  const Placement placement(plan, model, {});
  return simulator.run(schedule, price(schedule, placement, model, cluster, cost, EachLayer(model))).step;
}

/// Turns of a second each: forward one layer, backward one layer, and if the number of turns is even two
/// layers together once.
Seconds equal_turns(i32 devices, i64 turns, i64 microbatches, i32 round) {
  const i64 layers = turns / 2;
  TurnTimes times{std::vector<double>(static_cast<std::size_t>(layers) + 1, 1), {}};
  times.backward = times.forward;
  TurnSplit split;
  split.fused = 1;
  split.forward.assign(static_cast<std::size_t>(layers), 1);
  split.backward = split.forward;
  if (turns % 2 == 0) {
    split.backward.pop_back();
    split.backward.back() = 2;
    times.backward[0] = times.backward[1] = 0.5;
  }
  EXPECT_EQ(split.num_turns(), turns);
  return makespan(times, {.split = split, .round = round}, devices, microbatches);
}

TEST(RoundRobinGolden, EqualTurns) {
  EXPECT_EQ(equal_turns(2, 6, 4, 2), 13);
  EXPECT_EQ(equal_turns(4, 8, 8, 4), 19);
  EXPECT_EQ(equal_turns(4, 17, 8, 4), 37);
  EXPECT_EQ(equal_turns(8, 20, 16, 8), 47);
  EXPECT_EQ(equal_turns(8, 21, 16, 8), 49);
  EXPECT_EQ(equal_turns(3, 7, 6, 3), 16);
}

/// Eight turns of 2 s in two rounds of 4 microbatches on three devices, the last of which may be slower.
Seconds eight_turns(Dispatch dispatch, double slow) {
  TurnTimes times{{2, 2, 2, 2, 2}, {1, 1, 2, 2, 2}};
  const LayerTimes fast{times.forward, times.backward};
  LayerTimes other = fast;
  for (std::vector<double>* pass : {&other.forward, &other.backward})
    for (double& seconds : *pass) seconds *= slow;
  times.of_devices = {fast, fast, other};
  Rounds rounds{.split = {.forward = {1, 1, 1, 1}, .fused = 1, .backward = {1, 1, 2}}, .round = 4};
  rounds.split.lengths.assign(8, 2);
  rounds.lengths.assign(2, rounds.split.lengths);
  rounds.lengths.emplace_back(8, 2 * slow);
  RoundClock clock(rounds.lengths, 0);
  rounds.dealt = clock.deal(dispatch, 8, 8, 4);
  EXPECT_EQ(clock.end(), makespan(times, rounds, 3, 8));
  return clock.end();
}

TEST(RoundRobinGolden, DispatchByEarliestEnd) {
  EXPECT_EQ(eight_turns(Dispatch::kInTurn, 2), 86);
  EXPECT_EQ(eight_turns(Dispatch::kEarliestEnd, 2), 58);
  EXPECT_EQ(eight_turns(Dispatch::kInTurn, 1), 48);
  EXPECT_EQ(eight_turns(Dispatch::kEarliestEnd, 1), 48);
}

TEST(RoundRobinGolden, RoundsShorterThanTheDevices) {
  EXPECT_EQ(equal_turns(8, 24, 16, 4), 16 * 24 / 8 / (1 - 13.0 / 29));
  EXPECT_EQ(equal_turns(4, 8, 8, 2), 8 * 8 / 4 / (1 - 11.0 / 27));
}

Seconds of_best_split(const TurnTimes& times, i32 devices, i64 microbatches) {
  const i64 round = std::max<i64>(devices, microbatches / 2);
  return makespan(times, {.split = split_turns(times, devices, microbatches), .round = round}, devices,
                  microbatches);
}

TEST(RoundRobinGolden, BestSplits) {
  TurnTimes twelve{std::vector<double>(13, 1), std::vector<double>(13, 3)};
  EXPECT_EQ(of_best_split(twelve, 4, 8), 111);
  EXPECT_EQ(of_best_split({{1, 1, 1, 1, 1, 2}, {3, 3, 3, 3, 3, 6}}, 2, 4), 65);
  EXPECT_EQ(of_best_split({{2, 2, 2, 2, 5}, {5, 5, 5, 5, 9}}, 2, 4), 86);
  EXPECT_EQ(of_best_split({{1, 2, 1, 2, 1, 2, 3}, {3, 6, 3, 6, 3, 6, 8}}, 3, 6), 108);
  EXPECT_EQ(of_best_split({{1, 1, 1, 1, 1, 1, 1, 1, 4}, {3, 3, 3, 3, 3, 3, 3, 3, 12}}, 4, 8), 128);
}

/// RoundPipe's formula (section 7 there): in each round a forward turn uploads the weights of its layers, and
/// so does a backward turn, which downloads their gradients. Here with 32-bit numbers and experts; nothing
/// that a turn holds travels twice.
TEST(RoundRobinGolden, BytesOverTheLinks) {
  const ModelConfig model = test::make_model({.num_layers = 4});
  Cluster cluster = test::make_cluster({6});
  cluster.nodes[0].host = NodeHost{.memory_gib = 64};
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = request.microbatches = 6;
  Plan plan = find_strategy("ep").make(model, cluster, request);
  // Five turns, two rounds: no device has two turns of the same layers, whose weights it would still have.
  deal_turns(plan, {.split = {.forward = {2, 1}, .fused = 2, .backward = {1, 2}}, .round = 3});
  offload(plan, model, cluster, {"all"}, "test");
  ASSERT_TRUE(test::no_faults(validate(plan, model, cluster)));
  const Placement placement(plan, model, {});
  const WorkModel work(placement, model, cluster);
  std::map<i32, Bytes> up, down;  // by layer; -1 = the embedding, 4 = the head
  const Schedule schedule = build_schedule(plan, model);
  for (const Op& op : schedule.ops) {
    if (op.kind != OpKind::kFetch && op.kind != OpKind::kStore) continue;
    const State& state = schedule.states[static_cast<std::size_t>(op.state)];
    const i32 layer = state.part == UnitPart::kEmbed ? -1 : state.part == UnitPart::kHead ? 4 : state.layer;
    (op.kind == OpKind::kFetch ? up : down)[layer] += work.host_copy_bytes(op, nullptr);
  }
  const ParamCounts counts = count_parameters(model);
  const auto bytes = [&](i32 layer) {
    const LayerWeights weights = layer_weights(model, layer);
    return 4 * static_cast<Bytes>(weights.attention_part() + weights.experts);
  };
  const int rounds = 2;
  for (const i32 layer : {0, 1, 2}) {
    EXPECT_EQ(up[layer], 2 * rounds * bytes(layer)) << layer;
    EXPECT_EQ(down[layer], rounds * bytes(layer)) << layer;
  }
  EXPECT_EQ(up[3], rounds * bytes(3)) << "fused: once for both passes";
  EXPECT_EQ(down[3], rounds * bytes(3));
  EXPECT_EQ(up[4], rounds * 4 * static_cast<Bytes>(counts.head));
  EXPECT_EQ(down[4], rounds * 4 * static_cast<Bytes>(counts.head));
  EXPECT_EQ(up[-1], rounds * 4 * static_cast<Bytes>(counts.embedding));
  EXPECT_EQ(down[-1], rounds * 4 * static_cast<Bytes>(counts.embedding));
}

/// Of cuts whose fused turn is the head alone: in LayerSeconds other layers of it take longer than counted.
/// Transfers of a device wait for the ones before them in its order, so steps may take a little longer.
TEST(RoundRobinGolden, BestRoundsAreNearlyWhatIsSimulated) {
  std::mt19937 random(3);
  int compared = 0;
  for (int trial = 0; trial < 60; ++trial) {
    TurnTimes times;
    const auto layers = 3 + random() % 6;
    for (std::size_t l = 0; l <= layers; ++l) {
      times.forward.push_back(1.0 + static_cast<double>(random() % 3));
      times.backward.push_back(2 + 2 * times.forward.back());
    }
    const auto devices = static_cast<i32>(2 + random() % 3);
    const auto microbatches = static_cast<i64>(4 + random() % 9);
    const Rounds best = ranked_rounds(times, {.devices = devices, .microbatches = microbatches})[0];
    if (best.split.fused > 1) continue;
    ++compared;
    const Seconds simulated = makespan(times, best, devices, microbatches);
    EXPECT_GE(simulated, best.step);
    EXPECT_LE(simulated, 1.05 * best.step);
    EXPECT_LE(best.step, of_best_split(times, devices, microbatches));
  }
  EXPECT_GT(compared, 5);
}

}  // namespace
}  // namespace hetermoe
