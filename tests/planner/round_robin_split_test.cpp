#include "hetermoe/planner/strategies/round_robin_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "hetermoe/plan/turns.h"
#include "hetermoe/planner/strategies/round_clock.h"
#include "hetermoe/planner/strategies/round_robin_plan.h"
#include "tests/schedule/plans.h"
#include "tests/support/error_of.h"
#include "tests/support/processor_time.h"
#include "tests/support/sanitized.h"

namespace hetermoe {
namespace {

using Runs = std::vector<i64>;
using Times = std::vector<double>;

void expect_split(const TurnTimes& times, i64 devices, i64 microbatches, Seconds cost, Seconds longest,
                  const Runs& forward, i64 fused, const Runs& backward) {
  const TurnSplit split = split_turns(times, devices, microbatches);
  EXPECT_EQ(split.cost, cost);
  EXPECT_EQ(split.longest, longest);
  EXPECT_EQ(split.forward, forward);
  EXPECT_EQ(split.fused, fused);
  EXPECT_EQ(split.backward, backward);
}

TEST(SplitTurns, TwelveLayersAndAHead) {
  TurnTimes times{Times(12, 1), Times(13, 3)};
  times.forward.push_back(1);
  expect_split(times, 4, 8, 444, 3, {3, 3, 3, 3}, 1, Runs(12, 1));
}

TEST(SplitTurns, WorkedExamples) {
  expect_split({{1, 1, 1, 1, 1, 2}, {3, 3, 3, 3, 3, 6}}, 2, 4, 132, 6, {5}, 1, {1, 2, 2});
  expect_split({{2, 2, 2, 2, 5}, {5, 5, 5, 5, 9}}, 2, 4, 180, 10, {4}, 1, {2, 2});
  expect_split({{1, 2, 1, 2, 1, 2, 3}, {3, 6, 3, 6, 3, 6, 8}}, 3, 6, 324, 9, {6}, 1, {2, 2, 2});
  expect_split({{1, 1, 1, 1, 1, 1, 1, 1, 4}, {3, 3, 3, 3, 3, 3, 3, 3, 12}}, 4, 8, 528, 12, {8}, 1, {4, 4});
}

TEST(SplitTurns, AHeadAloneIsFused) { expect_split({{1}, {3}}, 2, 4, 3 * (4 * 2 + 2), 3, {}, 1, {}); }

Rounds best_of(const std::vector<Rounds>& ranked, i64 turns) {
  return *std::find_if(ranked.begin(), ranked.end(),
                       [&](const Rounds& rounds) { return rounds.split.num_turns() == turns; });
}

/// Three turns on two devices: in two rounds each device has three of them, in one round one has two.
TEST(RankedRounds, TurnsOfAllRoundsDivideByDevices) {
  const TurnTimes times{{2, 1}, {2, 2}};
  const Rounds best = best_of(ranked_rounds(times, {.devices = 2, .microbatches = 4, .drains = false}), 3);
  EXPECT_EQ(best.round, 2);
  EXPECT_EQ(best.step, 12);
  const RoundsRequest one_round{.devices = 2, .microbatches = 4, .round = 4, .drains = false};
  EXPECT_EQ(best_of(ranked_rounds(times, one_round), 3).step, 16);
}

/// Fewer turns than devices: rounds run side by side.
TEST(RankedRounds, OneTurnForEachRound) {
  const Rounds best = ranked_rounds({{2, 1}, {2, 2}}, {.devices = 2, .microbatches = 4, .drains = false})[0];
  EXPECT_EQ(best.split.num_turns(), 1);
  EXPECT_EQ(best.round, 2);
  EXPECT_EQ(best.step, 8);
}

/// Weights of a turn come during the turn before it, so many short turns wait for them.
TEST(RankedRounds, WeightsTakeTime) {
  TurnTimes times{{2, 1}, {2, 2}};
  times.fetch = {9, 9};
  const RoundsRequest request{.devices = 2, .microbatches = 8};
  const std::vector<Rounds> ranked = ranked_rounds(times, request);
  // One turn of 4 s for each microbatch of a round, after 18 s of both layers' weights.
  EXPECT_EQ(best_of(ranked, 1).round, 4);
  EXPECT_EQ(best_of(ranked, 1).step, 18 + 4 * 4);
  times.fetch.clear();
  EXPECT_EQ(best_of(ranked_rounds(times, request), 1).step, 16);
}

/// A device at half the speed gets half the turns.
TEST(RankedRounds, DevicesThatDiffer) {
  TurnTimes times{{2, 1}, {2, 2}};
  times.of_devices = {{{1, 1}, {1, 1}}, {{2, 2}, {2, 2}}};
  const Rounds best = best_of(ranked_rounds(times, {.devices = 2, .microbatches = 6}), 1);
  EXPECT_EQ(best.round, 2);
  EXPECT_EQ(best.dealt, (Runs{0, 1, 0}));
  EXPECT_EQ(best.step, 8);
}

/// Four devices more, at a third of the speed, never make the step longer than four alone, and never longer
/// than turns that go to all of them in turn.
TEST(RankedRounds, SlowDevicesDoNoHarm) {
  TurnTimes few{Times(12, 1), Times(13, 3)};
  few.forward.push_back(1);
  TurnTimes all = few;
  LayerTimes fast{few.forward, few.backward}, slow = fast;
  for (Times* pass : {&slow.forward, &slow.backward})
    for (double& seconds : *pass) seconds *= 3;
  all.of_devices = {fast, fast, fast, fast, slow, slow, slow, slow};
  for (const bool drains : {true, false}) {
    for (const i64 microbatches : {8, 16, 40}) {
      const Rounds with =
                       ranked_rounds(all, {.devices = 8, .microbatches = microbatches, .drains = drains})[0],
                   without =
                       ranked_rounds(few, {.devices = 4, .microbatches = microbatches, .drains = drains})[0];
      EXPECT_LE(with.step, without.step) << microbatches << " microbatches";
      RoundClock in_turn(with.lengths, 0);
      in_turn.deal(Dispatch::kInTurn, with.split.num_turns(), microbatches, with.round);
      EXPECT_LE(with.step, in_turn.end()) << microbatches << " microbatches";
    }
  }
}

/// A head that weighs as much as six layers: turns up to its length leave a short rest, for which others
/// wait. Even turns, in rounds side by side, leave 3 % of the devices' time idle.
TEST(RankedRounds, EvenTurnsWaitLittle) {
  TurnTimes times{Times(28, 1), Times(28, 3)};
  times.forward.push_back(0);
  times.backward.push_back(18.6);
  const Rounds best = ranked_rounds(times, {.devices = 8, .microbatches = 128, .drains = false})[0];
  const double work = std::accumulate(best.split.lengths.begin(), best.split.lengths.end(), 0.0);
  EXPECT_LE(best.step, 1.03 * work * 128 / 8);
}

TEST(RankedRounds, HopsTakeTime) {
  TurnTimes times{Times(12, 1), Times(13, 3)};
  times.forward.push_back(1);
  const RoundsRequest request{.devices = 4, .microbatches = 40};
  const Seconds without = best_of(ranked_rounds(times, request), 17).step;
  times.hop = 0.5;
  EXPECT_GT(best_of(ranked_rounds(times, request), 17).step, without);
}

/// All ways to cut the first `layers` times; bit l of `cuts` = a cut after layer l.
double longest_run(const Times& times, std::size_t layers, unsigned cuts, i64& runs) {
  double longest = 0, sum = 0;
  runs = 0;
  for (std::size_t l = 0; l < layers; ++l) {
    sum += times[l];
    if (l + 1 < layers && (cuts >> l & 1U) == 0) continue;
    longest = std::max(longest, sum);
    sum = 0;
    ++runs;
  }
  return longest;
}

double least_cost(const TurnTimes& times, i64 devices, i64 microbatches) {
  const std::size_t all = times.backward.size();
  double least = 1e300;
  for (std::size_t layers = 0; layers < all; ++layers) {
    double fused = 0;
    for (std::size_t l = layers; l < all; ++l) fused += times.backward[l];
    const unsigned ways = layers < 2 ? 1 : 1U << (layers - 1);
    for (unsigned f = 0; f < ways; ++f) {
      for (unsigned b = 0; b < ways; ++b) {
        i64 forward = 0, backward = 0;
        const double longest = std::max({fused, longest_run(times.forward, layers, f, forward),
                                         longest_run(times.backward, layers, b, backward)});
        const i64 turns = std::max(forward + 1 + backward, devices);
        least =
            std::min(least, static_cast<double>(microbatches * turns + devices * (devices - 1)) * longest);
      }
    }
  }
  return least;
}

TEST(SplitTurns, NoPartitionIsBetter) {
  std::mt19937 random(7);
  const auto draw = [&](int from, int to) { return std::uniform_int_distribution<int>(from, to)(random); };
  for (int i = 0; i < 150; ++i) {
    TurnTimes times;
    for (int l = draw(1, 7); l > 0; --l) {
      times.forward.push_back(draw(1, 9));
      times.backward.push_back(times.forward.back() + draw(1, 20));
    }
    const i64 devices = draw(1, 8), microbatches = draw(1, 16);
    EXPECT_EQ(split_turns(times, devices, microbatches).cost, least_cost(times, devices, microbatches)) << i;
  }
}

TEST(SplitTurns, NinetyFourLayersAtOnce) {
  TurnTimes times;
  for (int l = 0; l < 95; ++l) {
    times.forward.push_back(1 + 0.001 * l);
    times.backward.push_back(3 + 0.0007 * l * l);
  }
  const Seconds begin = testing::processor_time();
  EXPECT_GT(split_turns(times, 8, 64).num_turns(), 8);
  EXPECT_LT(testing::processor_time() - begin, testing::kSanitized ? 15 : 1.5);
}

TEST(IdleShare, OfEqualTurns) {
  EXPECT_DOUBLE_EQ(idle_share(2, 6, 4, 2), 1.0 / 13);
  EXPECT_DOUBLE_EQ(idle_share(4, 8, 8, 4), 3.0 / 19);
  EXPECT_DOUBLE_EQ(idle_share(4, 17, 8, 4), 3.0 / 37);
  EXPECT_DOUBLE_EQ(idle_share(8, 20, 16, 8), 7.0 / 47);
  EXPECT_DOUBLE_EQ(idle_share(8, 21, 16, 8), 1.0 / 7);
  EXPECT_DOUBLE_EQ(idle_share(3, 7, 6, 3), 1.0 / 8);
}

TEST(IdleShare, RoundsShorterThanTheDevicesBreakIt) {
  EXPECT_DOUBLE_EQ(idle_share(8, 24, 16, 4), 13.0 / 29);
  EXPECT_DOUBLE_EQ(idle_share(4, 8, 8, 2), 11.0 / 27);
}

StrategyRequest request(i64 microbatches, i32 window) {
  StrategyRequest r;
  r.seq_len = 8;
  r.sequences = r.microbatches = microbatches;
  r.window = window;
  return r;
}

TEST(RoundpipeStrategy, RoundsAreNoShorterThanThereAreDevices) {
  const ModelConfig model = test::make_model({.num_layers = 3});
  const Strategy& roundpipe = find_strategy("roundpipe");
  for (const i32 devices : {2, 4}) {
    for (const i64 microbatches : {3, 6, 9}) {
      const Plan plan = roundpipe.make(model, test::make_cluster({devices}), request(microbatches, -1));
      EXPECT_GE(plan.window, std::min<i64>(devices, microbatches));
      EXPECT_EQ(plan.turn_lengths.size(), turns_of(plan, plan.groups[0]).size());
    }
  }
}

TEST(RoundpipeStrategy, WarnsOfShortRounds) {
  const ModelConfig model = test::make_model({.num_layers = 3});
  const Strategy& roundpipe = find_strategy("roundpipe");
  EXPECT_EQ(round_warning(roundpipe.make(model, test::make_cluster({4}), request(8, 4))), "");
  TurnSplit split;  // seven turns
  split.forward = {1, 1, 1};
  split.fused = 1;
  split.backward = {1, 1, 1};
  Plan plan = find_strategy("ep").make(model, test::make_cluster({4}), request(8, 2));
  deal_turns(plan, {.split = split, .round = 2});
  EXPECT_EQ(
      round_warning(plan),
      fmt::format("rounds of 2 microbatches leave {:.0f} % of the time of 4 devices idle, even with turns of "
                  "equal length. Rounds of 4 would leave {:.0f} %: set plan.window, and enough "
                  "train.microbatches",
                  100 * idle_share(4, 7, 8, 2), 100 * idle_share(4, 7, 8, 4)));
  EXPECT_EQ(round_warning(find_strategy("ep").make(model, test::make_cluster({4}), request(8, 2))), "");
}

/// A plan of `forward` turns of a layer, the head, and as many turns back.
Plan plan_of_turns(i64 forward, i32 devices, i64 microbatches, i64 round) {
  const ModelConfig model = test::make_model({.num_layers = forward, .num_experts = 8});
  Plan plan = find_strategy("ep").make(model, test::make_cluster({devices}), request(microbatches, -1));
  const TurnSplit split{.forward = Runs(static_cast<std::size_t>(forward), 1),
                        .fused = 1,
                        .backward = Runs(static_cast<std::size_t>(forward), 1)};
  deal_turns(plan, {.split = split, .round = round});
  return plan;
}

/// One turn: eight rounds of three microbatches keep eight devices busy, rounds of eight only three of them.
TEST(RoundpipeStrategy, DoesNotWarnWhereLongerRoundsLeaveMoreIdle) {
  const ModelConfig model = test::make_model({.num_layers = 1, .num_experts = 8});
  Plan plan = find_strategy("ep").make(model, test::make_cluster({8}), request(24, -1));
  deal_turns(plan, {.split = {.fused = 2}, .round = 3});
  EXPECT_DOUBLE_EQ(idle_share(8, 1, 24, 3), 0);
  EXPECT_DOUBLE_EQ(idle_share(8, 1, 24, 8), 0.625);
  EXPECT_EQ(round_warning(plan), "");
}

TEST(RoundpipeStrategy, NeverAdvisesRoundsThatLeaveMoreIdle) {
  std::mt19937 random(11);
  const auto draw = [&](i64 from, i64 to) { return std::uniform_int_distribution<i64>(from, to)(random); };
  int warned = 0, silent = 0;
  for (int i = 0; i < 200; ++i) {
    const auto devices = static_cast<i32>(draw(2, 8));
    const i64 round = draw(1, devices - 1), microbatches = draw(round, 24);
    const Plan plan = plan_of_turns(draw(1, 4), devices, microbatches, round);
    const i64 turns = static_cast<i64>(turns_of(plan, plan.groups[0]).size());
    const std::string warning = round_warning(plan);
    (warning.empty() ? silent : warned) += 1;
    if (warning.empty()) continue;
    const double now = idle_share(devices, turns, microbatches, round),
                 advised = idle_share(devices, turns, std::max<i64>(microbatches, devices), devices);
    EXPECT_LT(std::lround(100 * advised), std::lround(100 * now)) << warning;
  }
  EXPECT_GT(warned, 20);
  EXPECT_GT(silent, 0);
}

/// A step's weights replace those of the step before when that has fetched its own for the last time.
TEST(RoundClock, TheNextStepWaitsForTheLastVisitOfItsWeights) {
  const std::vector<std::vector<Seconds>> lengths(2, Times{3, 1, 1});
  const std::vector<i64> dealt = {0, 1, 1};
  const auto two_steps = [&](std::vector<std::size_t> last_uses) {
    RoundClock clock(lengths, 0, {.seconds = {0, 0, 2}, .last_uses = std::move(last_uses)});
    const Seconds first = clock.run(dealt, 1, 1);
    EXPECT_EQ(first, 6);  // 3 + 1, the weights of the last turn come until 5, 1
    return clock.run(dealt, 1, 1) - first;
  };
  EXPECT_EQ(two_steps({}), 3);
  EXPECT_EQ(two_steps({2, 1, 2}), 5);
}

TEST(TurnTimes, TheNextStepWaitsForTheLastVisitOfItsWeights) {
  const ModelConfig model = test::make_model({.num_layers = 3});
  Plan plan = find_strategy("ep").make(model, test::make_cluster({3}), request(3, 1));
  const TurnSplit split{.forward = {2}, .fused = 2, .backward = {2}, .lengths = {1, 1, 5}};
  deal_turns(plan, {.split = split, .round = 1, .dealt = {0, 1, 2, 0, 1, 2, 0, 1, 2}});
  const Group& group = plan.groups[0];
  const auto begins = [&](i64 steps) {
    return turn_times(plan, group, turns_of(plan, group), steps)[0][0].begin;
  };
  EXPECT_EQ(begins(1), 0);
  // Backward turns begin after 2, 7 and 12; the weights of the last one come when the one before begins.
  EXPECT_EQ(begins(2), 7);
}

TEST(RoundpipeStrategy, RefusesSeveralNodesByName) {
  const ModelConfig model = test::make_model({.num_layers = 3});
  EXPECT_EQ(error_of([&] {
              find_strategy("roundpipe").make(model, test::make_cluster({2, 2}), request(8, 4));
            }),
            "[strategy roundpipe] devices 0, 1, 2, 3 are on 2 nodes of cluster test, expected one: turns go "
            "to every "
            "device, with the weights of one host. Name devices of one node, or use pp-ep");
}

}  // namespace
}  // namespace hetermoe
