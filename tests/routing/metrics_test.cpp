#include "hetermoe/routing/metrics.h"

#include <gtest/gtest.h>

#include <cmath>

#include "hetermoe/routing/synthetic.h"

namespace hetermoe {
namespace {

using Counts = std::vector<double>;

TEST(RoutingMetrics, GiniAndStragglerRatioOfSmallCounts) {
  EXPECT_DOUBLE_EQ(*gini(Counts{1, 2, 3, 4}), 1.0 / 4);
  EXPECT_DOUBLE_EQ(*straggler_ratio(Counts{1, 2, 3, 4}), 8.0 / 5);
  EXPECT_DOUBLE_EQ(*gini(Counts{0, 0, 0, 8}), 3.0 / 4);
  EXPECT_DOUBLE_EQ(*straggler_ratio(Counts{0, 0, 0, 8}), 4);
  EXPECT_NEAR(*gini(Counts{5, 5, 5, 5}), 0, 1e-15);
  EXPECT_DOUBLE_EQ(*straggler_ratio(Counts{5, 5, 5, 5}), 1);
  EXPECT_DOUBLE_EQ(*gini(Counts{8, 1, 1, 1, 1, 1, 1, 2}), 27.0 / 64);
  EXPECT_DOUBLE_EQ(*straggler_ratio(Counts{8, 1, 1, 1, 1, 1, 1, 2}), 4);
}

TEST(RoutingMetrics, DoNotDependOnScaleOrOrder) {
  EXPECT_DOUBLE_EQ(*gini(Counts{30, 10, 40, 20}), *gini(Counts{1, 2, 3, 4}));
  EXPECT_DOUBLE_EQ(*straggler_ratio(Counts{30, 10, 40, 20}), *straggler_ratio(Counts{1, 2, 3, 4}));
}

TEST(RoutingMetrics, WithoutCopiesThereIsNoFigure) {
  EXPECT_FALSE(gini(Counts{0, 0}));
  EXPECT_FALSE(straggler_ratio(Counts{0, 0}));
  EXPECT_FALSE(time_ratio(Counts{0, 0}, Counts{1, 1}));
}

TEST(RoutingMetrics, RankRatioGrowsWithTheDegree) {
  const Counts counts = {8, 1, 1, 1, 1, 1, 1, 2};
  const auto ratio = [&](i64 devices) { return *straggler_ratio(rank_copies(counts, devices)); };
  EXPECT_DOUBLE_EQ(ratio(1), 1);
  EXPECT_DOUBLE_EQ(ratio(2), 11.0 / 8);
  EXPECT_DOUBLE_EQ(ratio(4), 9.0 / 4);
  EXPECT_DOUBLE_EQ(ratio(8), 4);
  EXPECT_EQ(rank_copies(counts, 3), (Counts{9, 3, 4}));  // 2, 3 and 3 experts
}

TEST(RoutingMetrics, NoiseFloorIsWhatAnEvenRouterShows) {
  EXPECT_NEAR(noise_floor(64, 6, 1024), 0.0548, 5e-5);
  EXPECT_NEAR(noise_floor(8, 2, 2048), 0.0216, 5e-5);
  EXPECT_NEAR(noise_floor(128, 8, 4096), 0.0341, 5e-5);
  EXPECT_NEAR(noise_floor(256, 8, 16384), 0.0245, 5e-5);
  FigureRange drawn;
  for (u64 seed = 0; seed < 50; ++seed) {
    const TraceHeader header = {.layers = {0},
                                .num_experts = 64,
                                .top_k = 6,
                                .weights = TraceWeights::kNone,
                                .domains = {},
                                .model = {},
                                .seq_len = {},
                                .condition = {},
                                .source = {},
                                .job = {}};
    drawn.add(SyntheticTrace(header, {.seq_len = 256, .sequences = 4, .seed = seed}).gini());
  }
  EXPECT_NEAR(drawn.mean / noise_floor(64, 6, 1024), 1, 0.05);
}

TEST(RoutingMetrics, TimeRatioWeighsBySpeed) {
  EXPECT_DOUBLE_EQ(*time_ratio(Counts{10, 6}, Counts{3, 1}), 3.0 / 2);
  EXPECT_DOUBLE_EQ(*straggler_ratio(Counts{10, 6}), 5.0 / 4);
  EXPECT_DOUBLE_EQ(*time_ratio(Counts{10, 6}, Counts{1, 1}), 5.0 / 4);
}

TEST(RoutingMetrics, DriftCountsBusyExpertsThatChange) {
  const Counts before = {9, 9, 9, 9, 9, 9, 9, 9, 1, 0, 0, 0};
  Counts after = before;
  EXPECT_DOUBLE_EQ(*drift(before, after), 0);
  after[8] = 10, after[9] = 10;  // of nine equal ones the lower six stay
  EXPECT_DOUBLE_EQ(*drift(before, after), 2.0 / 8);
  EXPECT_EQ(busiest_experts(Counts{1, 3, 3, 2}, 2), (std::vector<ExpertId>{1, 2}));
  EXPECT_FALSE(drift(Counts(8, 1.0), Counts(8, 1.0)));
}

TEST(RoutingMetrics, Bands) {
  EXPECT_EQ(band_of(0.105), RoutingBand::kResilient);
  EXPECT_EQ(band_of(0.22), RoutingBand::kBetween);
  EXPECT_EQ(band_of(0.29), RoutingBand::kConcentrated);
}

TEST(RoutingMetrics, ExcessIsWhatIsBeyondNoise) {
  EXPECT_DOUBLE_EQ(gini_excess(0.05, 0.03), 0.04);
  EXPECT_DOUBLE_EQ(gini_excess(0.02, 0.03), 0);
}

}  // namespace
}  // namespace hetermoe
