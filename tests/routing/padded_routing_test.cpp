#include "hetermoe/routing/padded_routing.h"

#include <gtest/gtest.h>

#include "tests/schedule/plans.h"

namespace hetermoe {
namespace {

// Claim (PaddedRouting.*): padded exchanges: every source sends as much to other nodes as the one that sends
// most, and computes what it did
TEST(PaddedRouting, EverySourceSendsToOtherNodesAsMuchAsTheOneThatSendsMost) {
  const ModelConfig model = test::make_model({.num_layers = 1, .num_experts = 8, .top_k = 2});
  const Cluster cluster = test::make_cluster({2, 2});
  StrategyRequest request;
  request.seq_len = 8;
  request.sequences = 4;
  request.microbatches = 1;
  const Plan plan = find_strategy("ep").make(model, cluster, request);
  const Placement placement(plan, model, {});
  ASSERT_EQ(placement.ranges(0, 0, 0).size(), 4u);
  ASSERT_EQ(placement.owners(0, 0).size(), 4u);
  RecordedRouting recorded;
  ExchangeLoad load;
  load.tokens = {8, 8, 8, 8};
  load.rows_per_token.assign(4, 0);
  load.copies_per_token.assign(4, 0);
  load.rows = {5, 1, 2, 4,   // 6 to the other node, as many as any
               0, 7, 3, 0,   // 3
               0, 0, 8, 8,   // none, and none to pad with
               1, 0, 6, 2};  // 1
  load.copies = std::vector<double>(16, 9);
  recorded.set(0, 0, 0, 0, load);
  const ExchangeLoad padded = PaddedRouting(recorded, cluster).exchange(placement, 0, 0, 0, 0);
  EXPECT_EQ(padded.rows, (std::vector<double>{5, 1, 2, 4,  //
                                              0, 7, 6, 0,  //
                                              0, 0, 8, 8,  //
                                              6, 0, 6, 2}));
  EXPECT_EQ(padded.copies, load.copies);
  // What is expected in the mean is even already.
  const ExpectedRouting expected(model);
  const ExchangeLoad even = PaddedRouting(expected, cluster).exchange(placement, 0, 0, 0, 0);
  EXPECT_EQ(even.rows_per_token, expected.exchange(placement, 0, 0, 0, 0).rows_per_token);
  EXPECT_TRUE(even.is_product());
}

}  // namespace
}  // namespace hetermoe
