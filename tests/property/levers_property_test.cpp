#include <gtest/gtest.h>

#include "hetermoe/cost/roofline.h"
#include "hetermoe/sim/simulator.h"
#include "tests/property/random_plans.h"

// Recomputation ahead of the gradient and gradients of weights after those of inputs fill waits. Orders with
// fixed lanes have anomalies, so a step may become longer; seldom, and by little.
namespace hetermoe {
namespace {

using test::no_faults, test::RandomCase, test::RandomPlans;

constexpr i64 kNumPlans = 200;

Seconds step_of(const RandomCase& c) {
  const Schedule schedule = build_schedule(c.plan, c.model, c.options);
  EXPECT_TRUE(no_faults(validate(schedule, c.plan, c.model, c.options)));
  const Placement placement(c.plan, c.model, c.options);
  const RooflineCost cost(c.model, c.cluster, c.plan);
  const OpTimes times = Simulator().run(
      schedule, price(schedule, placement, c.model, c.cluster, cost, ExpectedRouting(c.model)));
  return *std::max_element(times.end.begin(), times.end.end());
}

struct Figures {
  i64 longer = 0;
  double worst = 0, sum = 0;  ///< change of the step, as a share
};

/// Of plans with training, uneven in every way, without and with the levers.
Figures figures_of(Recompute recompute, WeightGradients weights) {
  Figures figures;
  i64 count = 0;
  for (unsigned seed = 1; count < kNumPlans; ++seed) {
    RandomCase c = RandomPlans(seed).make();
    if (!c.options.backward) continue;
    ++count;
    for (Group& group : c.plan.groups) {
      for (LayerPlacement& layer : group.layers) layer.recompute.reset();
    }
    c.plan.seq_len *= 64;  // times of work, not of launches
    c.plan.recompute = Recompute::kLocal;
    c.plan.weight_gradients = WeightGradients::kWith;
    const Seconds before = step_of(c);
    c.plan.recompute = recompute;
    c.plan.weight_gradients = weights;
    const double change = step_of(c) / before - 1;
    figures.longer += change > 1e-9 ? 1 : 0;
    figures.worst = std::max(figures.worst, change);
    figures.sum += change;
  }
  std::cout << fmt::format(
      "[          ] {}, gradients of weights {}: {} of {} longer, by {:.2f} % at most; {:+.2f} % on "
      "average\n",
      name_of(recompute), name_of(weights), figures.longer, kNumPlans, 100 * figures.worst,
      100 * figures.sum / static_cast<double>(kNumPlans));
  return figures;
}

TEST(Levers, StepsOfRandomPlansAreHardlyEverLonger) {
  for (const auto& [recompute, weights] : {std::pair(Recompute::kAhead, WeightGradients::kWith),
                                           std::pair(Recompute::kLocal, WeightGradients::kAfter),
                                           std::pair(Recompute::kAhead, WeightGradients::kAfter)}) {
    const Figures figures = figures_of(recompute, weights);
    EXPECT_LE(figures.longer, kNumPlans / 20);
    EXPECT_LE(figures.worst, 0.02);
    EXPECT_LT(figures.sum / static_cast<double>(kNumPlans), -0.02);
  }
}

}  // namespace
}  // namespace hetermoe
