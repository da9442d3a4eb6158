#include "hetermoe/balance/expected_steps.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/schedule/plans.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

/// Three sequences on each of two devices, one microbatch, in three parts.
struct SmallStep {
  ModelConfig model = test::make_model({.num_layers = 1, .num_experts = 4, .top_k = 1, .hidden = 64});
  Cluster cluster = testing::nodes_of_eight({{"H100", 2}});
  Plan plan;

  SmallStep() {
    model.max_positions = 4096;
    StrategyRequest request;
    request.seq_len = 8;
    request.sequences = 6;
    request.microbatches = 1;
    plan = find_strategy("ep").make(model, cluster, request);
    plan.chunks = 3;
  }
};

const DomainUse kUse = {{{80, 0, 0, 0}, {0, 0, 10, 30}}, {10, 5}};

TEST(DomainRouting, OneDomainIsAPopularityOfItsOwn) {
  const SmallStep c;
  const Placement placement(c.plan, c.model, {});
  const DomainRouting routing(c.model, {0}, kUse, std::vector<i32>(6, 1));
  const LayerPopularity popularity(c.model, {0}, {kUse.copies[1]});
  for (i32 chunk = 0; chunk < c.plan.chunks; ++chunk) {
    const ExchangeLoad got = routing.exchange(placement, 0, 0, 0, chunk),
                       expected = popularity.exchange(placement, 0, 0, 0, chunk);
    EXPECT_EQ(got.tokens, expected.tokens);
    for (std::size_t s = 0; s < 2; ++s) {
      for (std::size_t o = 0; o < 2; ++o) {
        EXPECT_NEAR(got.rows_between(s, o), expected.rows_between(s, o), 1e-9);
        EXPECT_NEAR(got.copies_between(s, o), expected.copies_between(s, o), 1e-9);
      }
    }
  }
}

TEST(DomainRouting, ASourceSendsWhatTheDomainsOfItsSequencesChoose) {
  const SmallStep c;
  const Placement placement(c.plan, c.model, {});
  // Device 0 owns experts 0 and 1, all of domain 0; device 1 owns 2 and 3, all of domain 1.
  const DomainRouting routing(c.model, {0}, kUse, {0, 0, 1, 1, 0, 1});
  const auto near = [&](i32 chunk, const std::vector<double>& copies) {
    const ExchangeLoad load = routing.exchange(placement, 0, 0, 0, chunk);
    ASSERT_EQ(load.copies.size(), copies.size());
    for (std::size_t i = 0; i < copies.size(); ++i) {
      EXPECT_NEAR(load.copies[i], copies[i], 1e-3) << i;
      EXPECT_NEAR(load.rows[i], copies[i], 1e-3) << i;
    }
  };
  near(0, {8, 0, 0, 8});
  near(1, {8, 0, 8, 0});
  near(2, {0, 8, 0, 8});
}

}  // namespace
}  // namespace hetermoe
