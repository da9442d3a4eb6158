#include "hetermoe/planner/estimate/short_model.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/planner.h"
#include "hetermoe/planner/search/sketches.h"

namespace hetermoe {
namespace {

bool has_unlike_groups(const Sketch& sketch) { return !alike(sketch.groups.front(), sketch.groups.back()); }

/// A group of A100 beside one of H100: who ends last in four layers need not do so in 48.
TEST(ShortModel, ExtrapolatesUnlikeGroupsOneByOne) {
  PlanRequest request;
  request.model = load_model("qwen3-30b-a3b");
  request.cluster = load_cluster(HM_SOURCE_DIR "/bench/clusters/h100x16-a100x16.yaml");
  request.seq_len = 4096, request.sequences = 512;
  const Rates rates(request);
  Predictor whole(request.model, request.cluster, request.software);
  ShortModel first_layers(request.model, request.cluster, request.software);
  ASSERT_TRUE(first_layers.shortens());
  int left = 8;
  double errors = 0;
  for (const RankedSketch& ranked : rank_sketches(rates).sketches) {
    if (!has_unlike_groups(ranked.sketch)) continue;
    if (left-- == 0) break;
    Plan plan = realize(rates, ranked.sketch);
    const Seconds step = whole.predict(plan).step;
    const double ratio = first_layers.predict_within(1 << 30, plan)->step / step;
    EXPECT_NEAR(ratio, 1, 0.08) << ranked.sketch.window;
    errors += std::abs(ratio - 1);
  }
  EXPECT_LT(left, 1);
  EXPECT_LT(errors / 8, 0.03);
}

/// All layers are alike, so a deep model is simulated by a few of them.
TEST(ShortModel, ExtrapolatesADenseModel) {
  PlanRequest request;
  request.model = load_model("llama-3.1-8b");
  request.cluster = load_cluster(HM_SOURCE_DIR "/bench/clusters/h100x16-a100x16.yaml");
  request.seq_len = 4096, request.sequences = 512;
  const Rates rates(request);
  Predictor whole(request.model, request.cluster, request.software);
  ShortModel few(request.model, request.cluster, request.software);
  EXPECT_EQ(few.layers_simulated(), 2 + 4);
  const SketchRanking ranked = rank_sketches(rates);
  ASSERT_FALSE(ranked.sketches.empty());
  Plan plan = realize(rates, ranked.sketches.front().sketch);
  const Seconds step = whole.predict(plan).step;
  EXPECT_NEAR(few.predict_within(1 << 30, plan)->step / step, 1, 0.05);
}

}  // namespace
}  // namespace hetermoe
