#include "hetermoe/planner/short_model.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/sketches.h"
#include "tests/support/random_request.h"

namespace hetermoe {
namespace {

/// The whole step of a plan over what its first layers say of it: least and largest over the first sketches
/// of random requests.
struct Spread {
  double least = 1, largest = 1;
};

Spread spread_of(u64 seed) {
  const PlanRequest request =
      testing::random_request(seed, {.least_types = 2, .nodes = 4, .models = {"qwen3-30b-a3b"}, .sequences = 128});
  const Rates rates(request);
  Predictor whole(request.model, request.cluster, request.software);
  ShortModel first_layers(request.model, request.cluster, request.software);
  EXPECT_TRUE(first_layers.shortens());
  Spread spread;
  std::size_t left = 6;
  for (const RankedSketch& ranked : rank_sketches(rates).sketches) {
    if (ranked.sketch.groups.size() < 2) continue;
    if (left-- == 0) break;
    Plan plan = realize(rates, ranked.sketch);
    const Seconds step = whole.predict(plan).step;
    const double ratio = step / first_layers.predict_within(1 << 30, plan)->step;
    spread.least = std::min(spread.least, ratio), spread.largest = std::max(spread.largest, ratio);
  }
  return spread;
}

TEST(ShortModel, ExtrapolatesUnlikeGroups) {
  for (u64 seed = 1; seed <= 30; ++seed) {
    const Spread spread = spread_of(seed);
    std::printf("%d %.4f %.4f\n", (int)seed, spread.least, spread.largest);
    EXPECT_GT(spread.least, 0.97) << "seed " << seed;
    EXPECT_LT(spread.largest, 1.03) << "seed " << seed;
  }
}

}  // namespace
}  // namespace hetermoe
