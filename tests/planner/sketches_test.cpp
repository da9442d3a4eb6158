#include "hetermoe/planner/search/sketches.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "hetermoe/planner/request_check.h"
#include "hetermoe/planner/search/evaluator.h"
#include "tests/support/processor_time.h"
#include "tests/support/random_request.h"
#include "tests/support/sanitized.h"

namespace hetermoe {
namespace {

/// `devices` A40s, each with a measured speed of its own: 1, 1 - step, 1 - 2 step, ...
PlanRequest request_with_speeds(i32 devices, double step) {
  PlanRequest request;
  request.model = load_model("d1");
  request.cluster.name = "measured";
  request.cluster.types = {catalogue_device("A40", "test")};
  for (i32 d = 0; d < devices; ++d) {
    if (d % 8 == 0) request.cluster.nodes.push_back({fmt::format("n{}", d / 8), 12.5e9, 1e-5, 20e9, 5e-6});
    request.cluster.devices.push_back({0, d / 8, 1 - step * d});
  }
  request.seq_len = 2048;
  request.sequences = 40;
  return request;
}

i64 num_devices(const Sketch& sketch) {
  i64 sum = 0;
  for (const SketchGroup& group : sketch.groups)
    sum = std::accumulate(group.count.begin(), group.count.end(), sum);
  return sum;
}

TEST(ClassSets, AreAllSetsOfFewClassesInTheOrderOfTheirBits) {
  EXPECT_EQ(class_sets({0}), (std::vector<ClassSet>{{0}}));
  EXPECT_EQ(class_sets({0, 0, 1}), (std::vector<ClassSet>{{0}, {1}, {0, 1}, {2}, {0, 2}, {1, 2}, {0, 1, 2}}));
  EXPECT_EQ(class_sets({0, 1, 2, 3, 4}).size(), 31u);
}

TEST(ClassSets, OfManyClassesAreSinglesTheFirstFewAndAllButOne) {
  for (const std::size_t classes : {6u, 31u, 32u, 33u, 40u, 100u}) {
    const std::vector<ClassSet> sets = class_sets(std::vector<i32>(classes, 0));
    // The first alone, and all but the last, are counted twice.
    EXPECT_EQ(sets.size(), 3 * classes - 2) << classes;
    for (std::size_t c = 0; c < classes; ++c)
      EXPECT_NE(std::find(sets.begin(), sets.end(), ClassSet{c}), sets.end());
    EXPECT_EQ(sets.back().size(), classes);
  }
}

TEST(ClassSets, OfManyClassesAreAlsoThoseOfEverySetOfTypes) {
  const std::vector<ClassSet> sets = class_sets({0, 1, 1, 2, 3, 3, 2, 4});
  for (const ClassSet& of_types : {ClassSet{1, 2, 3, 6}, ClassSet{0, 3, 6, 7}, ClassSet{1, 2, 4, 5}})
    EXPECT_NE(std::find(sets.begin(), sets.end(), of_types), sets.end());
  EXPECT_LT(sets.size(), 60u);
}

TEST(Sketches, FortyMeasuredSpeedsGiveSketchesWithAllDevicesQuickly) {
  for (const i32 devices : {32, 40}) {
    for (const double step : {0.004, 0.015}) {
      const PlanRequest request = request_with_speeds(devices, step);
      const Seconds start = testing::processor_time();
      const Rates rates(request);
      const std::vector<RankedSketch> sketches = rank_sketches(rates).sketches;
      const Seconds seconds = testing::processor_time() - start;
      EXPECT_TRUE(
          std::any_of(sketches.begin(), sketches.end(),
                      [&](const RankedSketch& ranked) { return num_devices(ranked.sketch) == devices; }))
          << devices << " devices, " << sketches.size() << " sketches";
      EXPECT_LT(seconds, testing::kSanitized ? 200 : 20) << devices << " devices, step " << step;
    }
  }
}

TEST(Sketches, TheEndOfAStepFollowsTheBytesOfGradients) {
  const auto step_of = [](std::optional<Dtype> gradients, WireReduce wire) {
    PlanRequest request = request_with_speeds(16, 0);
    request.sequences = 16;
    request.grad_dtype = gradients, request.wire_reduce = wire;
    const Rates rates(request);
    Sketch sketch;
    sketch.groups = {{.first = {0}, .count = {16}, .attention = {16}, .mixed = true, .sequences = 16}};
    return estimate(rates, sketch).step;
  };
  const Seconds wide = step_of({}, WireReduce::kFp32), narrow = step_of(Dtype::kFp16, WireReduce::kFp32);
  EXPECT_LT(narrow, wide);
  // Only the way forth is narrow on the wire.
  const Seconds forth = step_of({}, WireReduce::kBf16);
  EXPECT_NEAR(wide - forth, (wide - narrow) / 2, 0.01 * wide);
  EXPECT_LT(forth, wide);
}

TEST(Sketches, FortyMeasuredSpeedsGiveAPlan) {
  PlanRequest request = request_with_speeds(40, 0.004);
  request.limits.simulation_budget = 2000;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  EXPECT_EQ(validate(result.best().plan, request.model, request.cluster), std::vector<std::string>{});
}

/// The first sketches of random requests, simulated: what the estimate says is near, and the one that it
/// ranks first is not much slower than the fastest of them.
TEST(Estimates, OfTheFirstSketchesAreNearTheSimulator) {
  constexpr std::size_t kFirst = 40;
  double error = 0, lost = 0;
  int sketches = 0, requests = 0;
  for (u64 seed = 1; seed <= static_cast<u64>(testing::cases(20)); ++seed) {
    PlanRequest request = checked(testing::random_request(seed, {.types = 3, .nodes = 4}));
    request.limits.simulation_budget = i64{1} << 40;
    Evaluator evaluator(request);
    std::optional<Seconds> first;
    std::vector<RankedSketch> ranked = rank_sketches(evaluator.rates()).sketches;
    if (ranked.size() > kFirst) ranked.resize(kFirst);
    for (const RankedSketch& sketch : ranked) {
      const i64 index = evaluator.evaluate(sketch.sketch);
      if (index < 0) continue;
      const Seconds step = evaluator.step_of(index);
      if (!first) first = step;
      error += std::abs(std::log(sketch.estimate.step / step));
      ++sketches;
    }
    if (first) lost += *first / evaluator.step_of(evaluator.best()) - 1, ++requests;
  }
  EXPECT_LT(error / sketches, 0.13);
  EXPECT_LT(lost / requests, 0.07);
  RecordProperty("error", fmt::format("{:.3f}", error / sketches));
  RecordProperty("lost", fmt::format("{:.3f}", lost / requests));
}

TEST(GroupChoice, AnyClassMayComputeAttentionAlone) {
  const auto attention_of = [](const Shape& shape) {
    std::vector<std::vector<i64>> all;
    for (const SketchGroup& group : later_class_groups(shape)) {
      EXPECT_EQ(group.count, shape);
      all.push_back(group.attention);
    }
    return all;
  };
  using Shapes = std::vector<std::vector<i64>>;
  EXPECT_EQ(attention_of({4, 2, 3}), (Shapes{{0, 2, 0}, {0, 0, 3}}));
  EXPECT_EQ(attention_of({0, 2, 3}), (Shapes{{0, 0, 3}}));
  EXPECT_EQ(attention_of({0, 2, 0}), Shapes{});
}

/// T4s have more of an advantage in attention than V100s, which are three times as fast.
TEST(Sketches, TheFastestTypeMayComputeAttentionThoughItsAdvantageIsInExperts) {
  PlanRequest request = testing::random_request(11, {.types = 2, .nodes = 2});
  for (Node& node : request.cluster.nodes) node.network *= 1.5;
  request = checked(request);
  ASSERT_EQ(request.cluster.types[0].name, "V100");
  const Rates rates(request);
  ASSERT_EQ(rates.classes()[0].type, 1) << "T4 comes first";
  const std::vector<RankedSketch> sketches = rank_sketches(rates).sketches;
  EXPECT_TRUE(std::any_of(sketches.begin(), sketches.end(), [](const RankedSketch& ranked) {
    const SketchGroup& group = ranked.sketch.groups.front();
    return group.count == Shape{4, 4} && group.attention == Shape{0, 4} && group.mixed;
  }));
}

TEST(DeviceClasses, AFullNodeComesFirst) {
  PlanRequest request = testing::random_request(1, {.types = 1, .nodes = 1});
  Cluster& cluster = request.cluster;
  cluster.nodes.assign(2, cluster.nodes[0]);
  cluster.devices = {{0, 0, 1}, {0, 1, 1}, {0, 1, 1}};
  const Rates rates(checked(request));
  // Of six devices and fewer those of each node are a class.
  EXPECT_EQ(rates.num_classes(), 2u);
  for (int d = 0; d < 5; ++d) cluster.devices.push_back({0, 1, 1});
  const PlanRequest larger = checked(request);
  const Rates whole(larger);
  ASSERT_EQ(whole.num_classes(), 1u);
  EXPECT_EQ(whole.classes()[0].devices.back(), 0);
  EXPECT_EQ(whole.classes()[0].on_full_nodes, 7);
  EXPECT_TRUE(whole.on_one_node({0}, {7}));
  EXPECT_FALSE(whole.on_one_node({0}, {8}));
  EXPECT_TRUE(whole.on_one_node({7}, {1}));
}

TEST(DeviceClasses, AreMergedWithinTwoPercentOfSpeedWhereThereAreMany) {
  // 0 % to 2 % below the fastest, then the next: 40 speeds that differ by half a per mille fit into one
  // class.
  const PlanRequest near = request_with_speeds(40, 0.0005);
  EXPECT_EQ(Rates(near).num_classes(), 1u);
  const PlanRequest far = request_with_speeds(40, 0.002);
  const Rates rates(far);
  EXPECT_LE(rates.num_classes(), 8u);
  for (const DeviceClass& cls : rates.classes()) {
    for (const DeviceId device : cls.devices) {
      const double speed = far.cluster.devices[static_cast<std::size_t>(device)].speed;
      // The class is as fast as its fastest device, which stands for all of them.
      EXPECT_LE(speed, cls.speed);
      EXPECT_GE(speed, 0.98 * cls.speed);
    }
    EXPECT_EQ(far.cluster.devices[static_cast<std::size_t>(cls.devices.front())].speed, cls.speed);
  }
}

TEST(DeviceClasses, StayApartWhereThereAreFew) {
  EXPECT_EQ(Rates(request_with_speeds(8, 0.001)).num_classes(), 8u);
}

TEST(DeviceClasses, AreMergedFurtherUntilThereAreNotTooMany) {
  const PlanRequest request = request_with_speeds(40, 0.02);
  const Rates rates(request);
  EXPECT_LE(rates.num_classes(), 8u);
  std::size_t devices = 0;
  for (const DeviceClass& cls : rates.classes()) devices += cls.devices.size();
  EXPECT_EQ(devices, 40u);
}

}  // namespace
}  // namespace hetermoe
