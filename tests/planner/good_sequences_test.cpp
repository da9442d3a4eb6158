#include "hetermoe/planner/search/good_sequences.h"

#include <gtest/gtest.h>

#include "hetermoe/planner/strategies/strategies.h"
#include "tests/support/nodes_of_eight.h"

namespace hetermoe {
namespace {

/// Expert parallelism on four devices.
struct Case {
  ModelConfig model = load_model("d1");
  Cluster cluster = testing::nodes_of_eight({{"H100", 4}});

  Plan plan(i64 sequences, i64 microbatches) const {
    StrategyRequest ask;
    ask.seq_len = 1024;
    ask.sequences = sequences, ask.microbatches = microbatches;
    return find_strategy("ep").make(model, cluster, ask);
  }
};

TEST(GoodSequences, HolesOfMicrobatchesAndSharesAreFilledOrLeftOut) {
  const Case c;
  const Plan plan = c.plan(14, 2);  // 7 = 2 + 2 + 2 + 1 each
  EXPECT_EQ(total_sequences(*evened(plan, c.cluster, true)), 16);
  EXPECT_EQ(total_sequences(*evened(plan, c.cluster, false)), 8);
  EXPECT_FALSE(evened(c.plan(16, 2), c.cluster, true).has_value());
  EXPECT_EQ(validate(*evened(plan, c.cluster, true), c.model, c.cluster), std::vector<std::string>{});
}

TEST(GoodSequences, APlanOfMoreHasRoomForLess) {
  const Case c;
  for (const i64 less : {1, 3, 5, 9}) {
    const Plan plan = *with_fewer(c.plan(16, 4), less);
    EXPECT_EQ(total_sequences(plan), 16 - less);
    EXPECT_EQ(validate(plan, c.model, c.cluster), std::vector<std::string>{});
  }
  EXPECT_FALSE(with_fewer(c.plan(4, 1), 4).has_value());
}

TEST(GoodSequences, NumbersThatDivideAreKept) {
  EXPECT_EQ(rounded_up(509), 512);
  EXPECT_EQ(rounded_up(63), 64);
  EXPECT_EQ(rounded_up(40), 40);
  EXPECT_EQ(rounded_up(7), 7);
}

}  // namespace
}  // namespace hetermoe
