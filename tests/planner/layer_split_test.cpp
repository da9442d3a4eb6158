#include "hetermoe/planner/estimate/layer_split.h"

#include <gtest/gtest.h>

#include <limits>
#include <random>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Layers of any cost on stages of any speed and room, each layer larger for stages that hold more in flight.
struct Instance {
  std::vector<double> cost, size;   // [layer]
  std::vector<double> speed, room;  // [stage]

  double sum(const std::vector<double>& of, const LayerRun& run) const {
    double sum = 0;
    for (i64 l = run.first; l < run.first + run.count; ++l) sum += of[idx(l)];
    return sum;
  }
  double cost_of(const LayerRun& run) const { return sum(cost, run) / speed[idx(run.stage)]; }
  bool allowed(const LayerRun& run) const { return sum(size, run) <= room[idx(run.stage)]; }
};

Instance random_instance(std::mt19937& random, i64 layers, i64 stages) {
  std::uniform_real_distribution<double> any(0.5, 2);
  Instance out;
  for (i64 l = 0; l < layers; ++l) out.cost.push_back(any(random)), out.size.push_back(any(random));
  for (i64 s = 0; s < stages; ++s) {
    out.speed.push_back(any(random));
    out.room.push_back(any(random) * 1.6 * real(layers) / real(stages));
  }
  return out;
}

/// The largest cost of the best cut from stage `run.stage` and layer `run.first` on, by trying all.
double least_of_all(const Instance& in, LayerRun run) {
  const auto layers = static_cast<i64>(in.cost.size()), stages = static_cast<i64>(in.speed.size());
  if (run.stage == stages) return run.first == layers ? 0 : std::numeric_limits<double>::infinity();
  double least = std::numeric_limits<double>::infinity();
  for (run.count = 1; run.first + run.count <= layers; ++run.count) {
    if (!in.allowed(run)) continue;
    least = std::min(least,
                     std::max(in.cost_of(run), least_of_all(in, {run.stage + 1, run.first + run.count, 0})));
  }
  return least;
}

TEST(LayerSplit, IsAsGoodAsTheBestOfAllCuts) {
  std::mt19937 random(7);
  i64 none = 0, some = 0;
  for (i64 trial = 0; trial < 400; ++trial) {
    const i64 layers = 1 + trial % 9, stages = 1 + trial % 5;
    const Instance in = random_instance(random, layers, stages);
    const std::vector<i64> split = split_layers(layers, stages, [&](const LayerRun& run) {
      return in.allowed(run) ? std::optional(in.cost_of(run)) : std::nullopt;
    });
    const double least = least_of_all(in, {});
    if (split.empty()) {
      EXPECT_EQ(least, std::numeric_limits<double>::infinity()) << "trial " << trial;
      ++none;
      continue;
    }
    ++some;
    ASSERT_EQ(static_cast<i64>(split.size()), stages);
    double largest = 0;
    LayerRun run;
    for (run.stage = 0; run.stage < stages; run.first += run.count, ++run.stage) {
      run.count = split[idx(run.stage)];
      EXPECT_GE(run.count, 1);
      EXPECT_TRUE(in.allowed(run));
      largest = std::max(largest, in.cost_of(run));
    }
    EXPECT_EQ(run.first, layers);
    EXPECT_EQ(largest, least) << "trial " << trial;
  }
  EXPECT_GT(none, 30);
  EXPECT_GT(some, 100);
}

TEST(LayerSplit, GivesTheStageOfAHeavyHeadFewerLayers) {
  // 61 layers, and a head as heavy as two.
  const auto cost = [](const LayerRun& run) {
    return real(run.count) + (run.first + run.count == 61 ? 2 : 0);
  };
  const std::vector<i64> split = split_layers(61, 7, cost);
  ASSERT_EQ(split.size(), 7U);
  EXPECT_LE(split.back(), 7);
  for (const i64 layers : split) EXPECT_LE(layers, 9);
}

TEST(LayerSplit, FewerLayersThanStagesCannotBeCut) {
  const auto one = [](const LayerRun&) { return 1.0; };
  EXPECT_EQ(split_layers(3, 4, one), std::vector<i64>{});
  EXPECT_EQ(split_layers(3, 3, one), (std::vector<i64>{1, 1, 1}));
}

}  // namespace
}  // namespace hetermoe
