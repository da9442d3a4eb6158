#include "hetermoe/planner/planner.h"

#include <gtest/gtest.h>

#include <limits>
#include <numeric>

#include "hetermoe/cost/memory_estimate.h"
#include "hetermoe/planner/search/sketches.h"
#include "hetermoe/planner/strategies/baselines.h"
#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/sanitized.h"
#include "tests/support/stage_oracle.h"

namespace hetermoe {
namespace {

PlanRequest request_of(const std::string& model, const std::string& cluster, i64 seq_len, i64 sequences) {
  PlanRequest request;
  request.model = load_model(model);
  request.cluster = load_cluster(cluster);
  request.seq_len = seq_len;
  request.sequences = sequences;
  return request;
}

/// A40 and V100, two to a node, `newer` and `older` of them.
Cluster mixed_cluster(i32 newer, i32 older, double network_gb_s = 12.5) {
  Cluster cluster;
  cluster.name = fmt::format("{}+{}", newer, older);
  cluster.types = {catalogue_device("A40", "test"), catalogue_device("V100", "test")};
  for (i32 d = 0; d < newer + older; ++d) {
    const bool is_newer = d < newer;
    if ((is_newer ? d : d - newer) % 2 == 0) {
      cluster.nodes.push_back(
          {fmt::format("n{}", cluster.nodes.size()), network_gb_s * 1e9, 1e-5, 20e9, 5e-6});
    }
    cluster.devices.push_back({is_newer ? 0 : 1, static_cast<NodeId>(cluster.nodes.size()) - 1, 1});
  }
  return cluster;
}

/// A strategy's plan with the request's dtypes.
Plan fixed_plan(const PlanRequest& request, const Strategy& strategy, i64 microbatches) {
  StrategyRequest ask;
  ask.seq_len = request.seq_len;
  ask.sequences = request.sequences;
  ask.microbatches = microbatches;
  Plan plan = strategy.make(request.model, request.cluster, ask);
  plan.dtype.assign(plan.dtype.size(), request.dtype);
  plan.wire_forward = plan.wire_backward = wire_of(request.dtype);
  return plan;
}

template <class Match>
const Candidate* find(const PlanResult& result, Match match) {
  for (const Candidate& candidate : result.tried) {
    if (match(candidate)) return &candidate;
  }
  return nullptr;
}

class PlannerOn : public ::testing::TestWithParam<std::tuple<std::string, std::string, i64, i64>> {
 protected:
  PlanRequest request() const {
    const auto& [model, cluster, seq_len, sequences] = GetParam();
    return request_of(model, cluster, seq_len, sequences);
  }
};

TEST_P(PlannerOn, IsNeverWorseThanAFixedStrategy) {
  const PlanRequest r = request();
  const PlanResult result = find_plan(r);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  Predictor predictor = predictor_of(r);
  for (const Strategy& strategy : strategies()) {
    if (strategy.name == "roundpipe") continue;  // not searched, and for one node
    for (const i64 microbatches : {1, 2, 4, 8}) {
      const Plan plan = fixed_plan(r, strategy, microbatches);
      const Prediction fixed = *predictor.whole_within(std::numeric_limits<i64>::max(), plan);
      const std::vector<Bytes> estimate = estimate_memory(plan, r.model, {}, {}, r.routing.margin);
      if (!overfilled_device(estimate, r.cluster).empty()) continue;
      if (!overfilled_device(fixed.memory, r.cluster).empty()) continue;
      EXPECT_LE(result.best().prediction.step, fixed.step * (1 + 1e-9))
          << strategy.name << " with " << microbatches << " microbatches";
    }
  }
}

TEST_P(PlannerOn, ReturnsValidPlansThatFitAndStepsThatTheSimulatorConfirms) {
  const PlanRequest r = request();
  const PlanResult result = find_plan(r);
  Predictor predictor(r.model, r.cluster);
  Seconds before = 0;
  for (const Candidate& candidate : result.tried) {
    if (!candidate.infeasible.empty()) continue;
    EXPECT_EQ(validate(candidate.plan, r.model, r.cluster), std::vector<std::string>{}) << candidate.name;
    EXPECT_EQ(overfilled_device(candidate.memory, r.cluster), "") << candidate.name;
    for (std::size_t d = 0; d < candidate.memory.size(); ++d) {
      if (candidate.memory[d] > 0 && !candidate.prediction.memory.empty()) {
        EXPECT_EQ(candidate.memory[d], candidate.prediction.memory[d]);
      }
    }
    EXPECT_EQ(total_sequences(candidate.plan), r.sequences);
    EXPECT_FALSE(candidate.prediction.from_first_windows) << candidate.name;
    EXPECT_DOUBLE_EQ(predictor.whole_within(std::numeric_limits<i64>::max(), candidate.plan)->step,
                     candidate.prediction.step);
    EXPECT_GE(candidate.prediction.step, before);
    EXPECT_NE(candidate.verdict, "");
    EXPECT_NE(candidate.limited_by, "");
    before = candidate.prediction.step;
  }
  // What is said of its critical path and of waits is said of the whole step.
  EXPECT_DOUBLE_EQ(result.best().timeline.step, result.best().prediction.step);
}

TEST_P(PlannerOn, AlwaysReportsNewerOnlyHomogeneousPlainEpAndSingle) {
  const PlanResult result = find_plan(request());
  EXPECT_NE(find(result, [](const Candidate& c) { return c.newer_only; }), nullptr);
  EXPECT_NE(find(result, [](const Candidate& c) { return c.homogeneous; }), nullptr);
  EXPECT_NE(find(result,
                 [](const Candidate& c) { return c.plan.strategy == "single" || c.name == "single device"; }),
            nullptr);
  EXPECT_NE(find(result,
                 [](const Candidate& c) { return c.plan.strategy == "ep" || c.name == "ep on all devices"; }),
            nullptr);
  EXPECT_GE(result.explanation.size(), 3u);
}

INSTANTIATE_TEST_SUITE_P(Cases, PlannerOn,
                         ::testing::Values(std::tuple{"d1", "o1", 8192, 48}, std::tuple{"w1", "o1", 4096, 48},
                                           std::tuple{"d1", "demo3", 4096, 24},
                                           std::tuple{"demo", "demo", 512, 16},
                                           std::tuple{"w1", "h100-v100", 4096, 48}),
                         [](const auto& info) { return fmt::format("case{}", info.index); });

TEST(Planner, SaysSoWhenTheNewerDevicesAloneAreFastest) {
  const PlanResult result = find_plan(request_of("w1", "h100-v100", 4096, 48));
  ASSERT_TRUE(result.feasible());
  EXPECT_TRUE(result.best().newer_only);
  EXPECT_EQ(result.best().verdict, "fastest; leaves devices out");
  for (const TypeUse& use : result.best().types) {
    if (use.type == "V100") {
      EXPECT_EQ(use.role, "idle");
    }
  }
  // That all devices together are slower has been looked at.
  EXPECT_NE(find(result, [](const Candidate& c) { return c.infeasible.empty() && !c.homogeneous; }), nullptr);
  EXPECT_NE(std::find_if(result.explanation.begin(), result.explanation.end(),
                         [](const std::string& line) {
                           return line.find("newer devices alone are fastest") != line.npos;
                         }),
            result.explanation.end());
}

/// M:N groups of the same types, nothing of which divides: 4:3 is no slower than 4:2, and so on.
TEST(Planner, AFurtherOlderDeviceNeverSlowsThePlan) {
  for (const auto& [model, seq_len] : {std::pair<std::string, i64>{"d1", 8192}, {"w1", 4096}}) {
    Seconds before = std::numeric_limits<Seconds>::infinity();
    for (i32 older = 1; older <= 5; ++older) {
      PlanRequest request = request_of(model, "o1", seq_len, 48);
      request.cluster = mixed_cluster(4, older);
      request.limits.simulation_budget = testing::kSearchBudget;
      const PlanResult result = find_plan(request);
      ASSERT_TRUE(result.feasible()) << result.infeasible;
      EXPECT_LE(result.best().prediction.step, before) << model << " on 4:" << older;
      before = result.best().prediction.step;
    }
  }
}

TEST(Planner, EqualRequestsGiveEqualPlans) {
  PlanRequest request = request_of("d1", "o1", 4096, 48);
  request.limits.simulation_budget = testing::kSearchBudget;
  EXPECT_EQ(to_json(find_plan(request)), to_json(find_plan(request)));
}

TEST(Planner, LeavesIdleDevicesAndReservedMemoryAlone) {
  PlanRequest request = request_of("w1", "o1", 4096, 48);
  request.limits.idle = {0, 11};
  request.limits.memory_reserve = 2.0 * 1024 * 1024 * 1024;
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible());
  for (const Candidate& candidate : result.tried) {
    if (!candidate.infeasible.empty()) continue;
    EXPECT_EQ(candidate.prediction.busy[0], 0);
    EXPECT_EQ(candidate.prediction.busy[11], 0);
    std::vector<Bytes> memory = candidate.memory;
    for (Bytes& bytes : memory) bytes += request.limits.memory_reserve;
    EXPECT_EQ(overfilled_device(memory, request.cluster), "");
  }
}

TEST(Planner, InfeasibleNamesTheDeviceAndItsNeed) {
  const PlanResult result = find_plan(request_of("mixtral-8x7b", "demo3", 4096, 24));
  EXPECT_FALSE(result.feasible());
  EXPECT_NE(result.infeasible.find("needs"), std::string::npos) << result.infeasible;
  EXPECT_NE(result.infeasible.find("GiB"), std::string::npos) << result.infeasible;
  EXPECT_NE(result.infeasible.find("device"), std::string::npos) << result.infeasible;
}

TEST(Planner, InfeasibleSaysWhetherASequenceOrTheExpertsAreTooLarge) {
  PlanRequest request = request_of("d1", "o1", 1 << 21, 4);  // of half as much, experts would lack least
  request.model.max_positions = 0;
  EXPECT_NE(find_plan(request).infeasible.find("GiB at 1 sequence"), std::string::npos)
      << find_plan(request).infeasible;
  request = request_of("deepseek-v3", "o1", 512, 4);
  EXPECT_NE(find_plan(request).infeasible.find(" experts"), std::string::npos)
      << find_plan(request).infeasible;
}

/// The GiB that an infeasible request lacks memory for.
double gib_needed(const PlanRequest& request) {
  const std::string why = find_plan(request).infeasible;
  const std::size_t needs = why.find("needs ");
  EXPECT_NE(needs, std::string::npos) << why;
  return needs == std::string::npos ? 0 : std::stod(why.substr(needs + 6));
}

TEST(Planner, InfeasibleNamesTheNearestMiss) {
  PlanRequest one = request_of("d1", "o1", 2048, 12), two = one;
  one.cluster = mixed_cluster(0, 1);
  two.cluster = mixed_cluster(0, 2);
  // Two devices need not hold the model twice.
  EXPECT_LT(gib_needed(two), 0.8 * gib_needed(one));
}

/// One device, or devices of one type: a role has nobody of its own.
TEST(Planner, PlansWithoutDevicesOfOneRole) {
  for (const auto& [newer, older] : {std::pair{1, 0}, {2, 0}, {0, 4}}) {
    PlanRequest request = request_of("d1", "o1", 2048, 12);
    request.cluster = mixed_cluster(newer, older);
    const PlanResult result = find_plan(request);
    ASSERT_TRUE(result.feasible()) << result.infeasible;
    EXPECT_TRUE(result.best().homogeneous);
    EXPECT_EQ(validate(result.best().plan, request.model, request.cluster), std::vector<std::string>{});
    if (newer + older > 1) continue;
    // What asks for both roles on one device is refused.
    Predictor predictor(request.model, request.cluster);
    Setting setting;
    setting.seq_len = request.seq_len;
    setting.sequences = request.sequences;
    EXPECT_THROW(tune_zebra(predictor, setting, true), ConfigError);
  }
  PlanRequest request = request_of("d1", "o1", 2048, 12);
  request.cluster = mixed_cluster(4, 4);
  request.limits.idle = {0, 1, 2, 3};
  const PlanResult result = find_plan(request);
  ASSERT_TRUE(result.feasible()) << result.infeasible;
  // As if the cluster had none of them: those that remain are the newest.
  for (const Candidate& candidate : result.tried) {
    if (!candidate.infeasible.empty()) continue;
    for (std::size_t d = 0; d < 4; ++d) EXPECT_EQ(candidate.prediction.busy[d], 0) << candidate.name;
  }
}

TEST(Planner, RefusesRequestsThatMakeNoSense) {
  const PlanRequest good = request_of("tiny", "demo", 64, 8);
  const auto refused = [&](auto change) {
    PlanRequest bad = good;
    change(bad);
    EXPECT_THROW(find_plan(bad), ConfigError);
  };
  refused([](PlanRequest& r) { r.cluster.devices.clear(); });
  refused([](PlanRequest& r) { r.seq_len = 0; });
  refused([](PlanRequest& r) { r.seq_len = r.model.max_positions + 1; });
  refused([](PlanRequest& r) { r.sequences = 0; });
  refused([](PlanRequest& r) { r.sequences = -1; });
  refused([](PlanRequest& r) { r.cluster.nodes[0].network = -1; });
  refused([](PlanRequest& r) { r.limits.idle = {99}; });
  refused([](PlanRequest& r) { r.limits.idle = {0, 1, 2, 3}; });
  EXPECT_TRUE(find_plan(good).feasible());
}

TEST(MicrobatchChoices, AreMostlyDivisorsWithinTheLimit) {
  EXPECT_EQ(microbatch_choices(12, 64), (std::vector<i64>{1, 2, 3, 4, 6, 12}));
  EXPECT_EQ(microbatch_choices(13, 64), (std::vector<i64>{1, 2, 4, 8, 13}));
  EXPECT_EQ(microbatch_choices(5, 64), (std::vector<i64>{1, 2, 3, 4, 5}));
  EXPECT_EQ(microbatch_choices(5, 3), (std::vector<i64>{1, 2, 3}));
  EXPECT_EQ(microbatch_choices(12, 4), (std::vector<i64>{1, 2, 3, 4}));
  EXPECT_EQ(microbatch_choices(1, 64), (std::vector<i64>{1}));
}

TEST(PlannerOracle, BranchAndBoundFindsTheOptimumOfExhaustiveSearch) {
  using testing::PlanOracle;
  for (u64 seed = 1; seed <= 12; ++seed) {
    const PlanRequest request = testing::small_request(seed, {2, 3, 3});
    PlanOracle all(request, 1e30, PlanOracle::Search::kExhaustive), bounded(request, 1e30);
    EXPECT_EQ(all.best(), bounded.best()) << "seed " << seed;
    EXPECT_LT(bounded.num_simulated(), all.num_simulated()) << "seed " << seed;
  }
}

template <class T>
T one_of(testing::Chooser& choose, const std::vector<T>& all) {
  return all[static_cast<std::size_t>(choose.below(static_cast<i64>(all.size())))];
}

/// Bounds of all prefixes of a random plan, over its step.
std::vector<double> random_bounds(u64 seed) {
  const PlanRequest request = testing::small_request(seed, {4, 6, 5});
  testing::Chooser choose(seed);
  const i64 microbatches = one_of(choose, microbatch_choices(request.sequences, request.sequences));
  if (request.sequences % microbatches != 0) return {};
  Plan plan = testing::oracle_plan(request, microbatches,
                                   one_of<Recompute>(choose, {Recompute::kOff, Recompute::kLocal}),
                                   choose.below(2) == 1);
  const auto devices = static_cast<std::size_t>(request.cluster.num_devices());
  testing::set_shares(plan, one_of(choose, testing::compositions(request.sequences / microbatches, devices)));
  plan.window = static_cast<i32>(choose.below(microbatches));
  const std::vector<std::vector<i64>> counts = testing::compositions(request.model.num_experts, devices);
  testing::StepSeconds seconds;
  EXPECT_TRUE(testing::price_layers(request, plan, counts, 1e30, seconds));
  const testing::StepBound bound(seconds, microbatches, plan.window);
  testing::StepBound::Prefix prefix = bound.empty();
  std::vector<double> bounds = {bound.bound(prefix)};
  for (LayerPlacement& layer : plan.groups[0].layers) {
    const auto c = static_cast<std::size_t>(choose.below(static_cast<i64>(counts.size())));
    testing::set_owners(layer, counts[c]);
    prefix = bound.with_layer(prefix, bound.layer(c));
    bounds.push_back(bound.bound(prefix));
  }
  const Seconds step = Predictor(request.model, request.cluster).predict(plan).step;
  for (double& b : bounds) b /= step;
  return bounds;
}

/// A cut is sound when no bound of a prefix is above the step of a plan that begins with it, whatever the
/// plan; it is worth having when it is near.
TEST(PlannerOracle, NoBoundOfAPrefixIsAboveTheStep) {
  double complete = 0, plans = 0;
  for (u64 seed = 1; seed <= 200; ++seed) {
    const std::vector<double> bounds = random_bounds(seed);
    for (const double bound : bounds) EXPECT_LE(bound, 1 + 1e-9) << "seed " << seed;
    if (bounds.empty()) continue;
    complete += bounds.back();
    ++plans;
  }
  EXPECT_GT(complete / plans, 0.9);
}

TEST(PlannerOracle, LooksAtOneOrderOfEqualDevices) {
  PlanRequest equal = testing::small_request(3, {2, 3, 3});
  equal.cluster = testing::make_cluster(4, 2, 1);
  PlanRequest different = equal;  // in nothing that matters
  for (DeviceId d = 0; d < 4; ++d) different.cluster.devices[static_cast<std::size_t>(d)].speed += 1e-12 * d;
  testing::PlanOracle one(equal, 1e30), all(different, 1e30);
  EXPECT_NEAR(one.best(), all.best(), 1e-9);
  EXPECT_LT(one.num_simulated(), all.num_simulated());
}

/// Worst gap and share of gaps of at most 2 % over seeds from `first` on.
template <class Oracle = testing::PlanOracle>
void expect_near_optimum(u64 first, int instances, const testing::SmallSizes& sizes,
                         PlanRequest (*request_of)(u64,
                                                   const testing::SmallSizes&) = testing::small_request) {
  constexpr i64 kMostSimulated = 2000;  // what takes longer is for planner_bench
  int near = 0, solved = 0;
  for (u64 seed = first; seed < first + static_cast<u64>(instances); ++seed) {
    const PlanRequest request = request_of(seed, sizes);
    const PlanResult result = find_plan(request);
    ASSERT_TRUE(result.feasible()) << "seed " << seed << ": " << result.infeasible;
    const std::optional<double> gap = testing::gap_to_optimum<Oracle>(request, result, 0.01, kMostSimulated);
    if (!gap) continue;
    EXPECT_LE(*gap, 0.03) << "seed " << seed << ", " << result.best().name;
    near += *gap <= 0.02;
    ++solved;
  }
  EXPECT_GE(solved, instances * 9 / 10);
  EXPECT_GE(near, solved * 9 / 10);
}

TEST(PlannerOracle, IsNearTheOptimumOfSmallInstances) {
  expect_near_optimum(1, static_cast<int>(testing::cases(40)), {2, 4, 3});
}

/// Slow links and one layer: zebra's transfers hide behind the head, which the estimate does not see.
TEST(PlannerOracle, FindsZebraThatOnlyTheSimulatorFavours) {
  for (const u64 seed : {273, 374, 414}) expect_near_optimum(seed, 1, {2, 4, 3});
}

/// The optimum has other owners in each layer; with the same ones in all layers a plan of other devices with
/// attention, other microbatches or another window is faster. Of the last one a single layer alone gains
/// nothing.
TEST(PlannerOracle, MovesExpertsOfOtherPlansThanTheBest) {
  for (const u64 seed : {69, 419, 460}) expect_near_optimum(seed, 1, {2, 4, 3});
}

/// Stages that hold all of a mixed node, in any order, with layers moved over their borders. Of the first
/// eight seeds the planner missed 3 to 9 % before it looked at those.
TEST(PlannerOracle, IsNearTheOptimumOfPipelines) {
  const auto expect_near = [](u64 first, int instances) {
    expect_near_optimum<testing::StageOracle>(first, instances, {6, 4, 4}, testing::small_pipeline_request);
  };
  for (const u64 seed : {42, 43, 85, 87, 104, 131, 410, 446}) expect_near(seed, 1);
  expect_near(1000, static_cast<int>(testing::cases(10)));
}

TEST(PlannerOracle, IsNearTheOptimumOfLargerInstances) {
  expect_near_optimum(80, static_cast<int>(testing::cases(20)), {4, 6, 5});
}

}  // namespace
}  // namespace hetermoe
