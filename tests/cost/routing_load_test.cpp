#include "hetermoe/placement/routing_load.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

struct Case {
  ModelConfig model;
  Plan plan;

  ExchangeLoad load(std::vector<double> popularity = {}, i32 chunk = 0) const {
    return ExpectedRouting(model, std::move(popularity)).exchange(Placement(plan, model, {}), 0, 0, 0, chunk);
  }
};

Case make_case(i64 num_experts, i64 top_k, i32 expert_devices) {
  Case c;
  c.model = test::make_model({.num_layers = 1, .num_experts = num_experts, .top_k = top_k});
  c.plan = test::make_zebra_plan(c.model, test::make_cluster({2, expert_devices}), {2, expert_devices, 1});
  return c;
}

TEST(ExpectedRouting, UniformRowsFollowFromDrawingWithoutReplacement) {
  // Two of four experts per device and two chosen: one of the six pairs lies on the other device.
  const ExchangeLoad load = make_case(4, 2, 2).load();
  ASSERT_EQ(load.num_owners(), 2u);
  EXPECT_DOUBLE_EQ(load.copies_per_token[0], 1);
  EXPECT_DOUBLE_EQ(load.rows_per_token[0], 5.0 / 6);
  EXPECT_EQ(load.tokens, (std::vector<double>{16, 16}));
  EXPECT_DOUBLE_EQ(load.rows_at(1), 32 * 5.0 / 6);
}

TEST(ExpectedRouting, OneExpertPerDeviceSendsARowPerCopy) {
  const ExchangeLoad load = make_case(4, 2, 4).load();
  for (std::size_t o = 0; o < 4; ++o) {
    EXPECT_DOUBLE_EQ(load.copies_per_token[o], 0.5);
    EXPECT_DOUBLE_EQ(load.rows_per_token[o], 0.5);
  }
}

TEST(ExpectedRouting, AllExpertsOnOneDeviceSendEachTokenOnce) {
  Case c = make_case(4, 2, 1);
  EXPECT_DOUBLE_EQ(c.load().rows_per_token[0], 1);
  EXPECT_DOUBLE_EQ(c.load().copies_per_token[0], 2);
  c.plan.row_dedup = false;
  EXPECT_DOUBLE_EQ(c.load().rows_per_token[0], 2);
}

TEST(ExpectedRouting, ReplicasShareTheRows) {
  Case c = make_case(2, 1, 2);
  auto& experts = c.plan.groups[0].layers[0].experts;
  experts[0] = {{2, 0.25}, {3, 0.75}};
  experts[1] = {{3, 1}};
  const ExchangeLoad load = c.load();
  EXPECT_DOUBLE_EQ(load.copies_per_token[0], 0.125);
  EXPECT_DOUBLE_EQ(load.copies_per_token[1], 0.875);
  EXPECT_DOUBLE_EQ(load.rows_per_token[0], 0.125);
  EXPECT_DOUBLE_EQ(load.rows_per_token[1], 0.875);
}

TEST(ExpectedRouting, ChunksCutTheTokensOfEachSource) {
  Case c = make_case(4, 2, 1);
  c.plan.chunks = 3;
  EXPECT_EQ(c.load({}, 0).tokens, (std::vector<double>{5, 5}));
  EXPECT_EQ(c.load({}, 1).tokens, (std::vector<double>{5, 5}));
  EXPECT_EQ(c.load({}, 2).tokens, (std::vector<double>{6, 6}));
}

double sum(const std::vector<double>& values) { return std::accumulate(values.begin(), values.end(), 0.0); }

TEST(ExpectedRouting, SkewedCopiesAddUpToTopK) {
  for (const double exponent : {0.0, 0.5, 1.0, 2.0, 5.0}) {
    const ExchangeLoad load = make_case(8, 3, 4).load(zipf_popularity(8, exponent));
    EXPECT_NEAR(sum(load.copies_per_token), 3, 1e-12) << exponent;
    for (std::size_t o = 0; o < load.num_owners(); ++o) {
      EXPECT_LE(load.copies_per_token[o], 2 + 1e-12) << "two experts are drawn at most once each";
      EXPECT_LE(load.rows_per_token[o], 1 + 1e-12);
      EXPECT_LE(load.rows_per_token[o], load.copies_per_token[o] + 1e-12);
    }
  }
}

TEST(ExpectedRouting, FlatPopularityEqualsUniform) {
  const Case c = make_case(8, 3, 4);
  const ExchangeLoad flat = c.load(std::vector<double>(8, 0.125)), uniform = c.load();
  for (std::size_t o = 0; o < 4; ++o) {
    EXPECT_NEAR(flat.rows_per_token[o], uniform.rows_per_token[o], 1e-12);
    EXPECT_NEAR(flat.copies_per_token[o], uniform.copies_per_token[o], 1e-12);
  }
}

TEST(ExpectedRouting, AnExpertThatEveryTokenPicksGetsARowPerToken) {
  const ExchangeLoad load = make_case(4, 2, 2).load({0.97, 0.01, 0.01, 0.01});
  EXPECT_DOUBLE_EQ(load.rows_per_token[0], 1);
  EXPECT_NEAR(load.copies_per_token[0], 1 + 1.0 / 3, 1e-12);  // the other three share the second choice
}

TEST(ExpectedRouting, PopularityMustMatchTheModel) {
  EXPECT_THROW(make_case(4, 2, 2).load({0.5, 0.5}), InputError);
}

TEST(ZipfPopularity, FollowsTheRank) {
  const std::vector<double> p = zipf_popularity(4, 1);
  EXPECT_DOUBLE_EQ(sum(p), 1);
  EXPECT_NEAR(p[0] / p[3], 4, 1e-12);
}

TEST(RecordedRouting, GivesBackWhatWasRecordedAndNamesWhatWasNot) {
  const Case c = make_case(4, 2, 2);
  RecordedRouting recorded;
  ExchangeLoad load;
  load.tokens = {3, 4};
  load.rows_per_token = load.copies_per_token = {0, 0};
  load.rows = {1, 2, 3, 4};
  load.copies = {1, 2, 3, 5};
  recorded.set(0, 0, 0, 0, load);
  const Placement placement(c.plan, c.model, {});
  EXPECT_EQ(recorded.exchange(placement, 0, 0, 0, 0).copies_at(1), 7);
  EXPECT_FALSE(recorded.is_uniform());
  EXPECT_THROW(recorded.exchange(placement, 0, 0, 1, 0), InputError);
}

}  // namespace
}  // namespace hetermoe
