#include "hetermoe/planner/compare.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

class CompareTest : public testing::Test {
 protected:
  std::vector<CompareRow> compare(const std::vector<i64>& seq_lens) {
    return compare_strategies(load_model("d1"), load_cluster("o1"), seq_lens, options_);
  }
  CompareOptions options_;
};

TEST_F(CompareTest, OneRowPerLengthAndStrategyInTheOrderAsked) {
  options_.strategies = {"dist_ep", "zebra"};
  const std::vector<CompareRow> rows = compare({8192, 16384});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].strategy, "dist-ep");
  EXPECT_EQ(rows[3].strategy, "zebra");
  EXPECT_EQ(rows[3].seq_len, 16384);
  for (const CompareRow& row : rows) {
    EXPECT_NEAR(row.tokens_per_s, static_cast<double>(row.sequences * row.seq_len) / row.step_s, 1e-6);
    EXPECT_EQ(row.memory_bytes.size(), 12u);
  }
}

TEST_F(CompareTest, EpIdealAddsTwoIndependentHalves) {
  options_.strategies = {"ep", "ep-ideal"};
  const std::vector<CompareRow> rows = compare({8192});
  EXPECT_GT(rows[1].tokens_per_s, rows[0].tokens_per_s);
  EXPECT_GT(rows[1].utilization_attention, rows[0].utilization_attention);  // nobody waits for the other type
}

TEST_F(CompareTest, BestIsNeverSlowerThanAFixedStrategy) {
  for (const i64 seq_len : {4096, 24576}) {
    const std::vector<CompareRow> rows = compare({seq_len});
    ASSERT_EQ(rows.back().strategy, "best");
    EXPECT_NE(rows.back().plan, "");
    for (const CompareRow& row : rows) {
      if (row.strategy == "ep-ideal") continue;  // cannot run
      EXPECT_GE(rows.back().tokens_per_s, row.tokens_per_s) << row.strategy;
    }
  }
}

TEST_F(CompareTest, RatioIsTheFirstStrategyOverTheRow) {
  options_.strategies = {"zebra", "ep"};
  const std::vector<CompareRow> rows = compare({8192, 16384});
  EXPECT_EQ(rows[2].ratio, 1);
  EXPECT_DOUBLE_EQ(rows[3].ratio, rows[2].tokens_per_s / rows[3].tokens_per_s);
}

TEST_F(CompareTest, EpThatOverfillsWithItsSmallestMicrobatchIsMarked) {
  options_.strategies = {"ep"};
  const CompareRow row = compare_strategies(load_model("w2"), load_cluster("o2"), {32768}, options_)[0];
  EXPECT_EQ(row.infeasible, "");
  EXPECT_GT(row.tokens_per_s, 0);
  EXPECT_NE(row.over_memory.find("V100"), std::string::npos);
  EXPECT_EQ(compare({8192})[0].over_memory, "");
}

TEST_F(CompareTest, WithoutAsymEaNothingMoves) {
  options_.strategies = {"zebra"};
  options_.asym_ea = false;
  EXPECT_EQ(compare({4096})[0].experts_moved, std::vector<i64>(8, 0));
  options_.asym_ea = true;
  EXPECT_NE(compare({4096})[0].experts_moved, std::vector<i64>(8, 0));
}

TEST_F(CompareTest, StepIsTheLargestThatFitsInWholeSequencesPerDevice) {
  const ModelConfig model = load_model("w1");
  const Cluster cluster = load_cluster("o1");
  const i64 at_4k = default_sequences(model, cluster, 4096, options_);
  EXPECT_EQ(at_4k % 12, 0);
  EXPECT_LE(at_4k * 4096, kMaxStepTokens);
  EXPECT_GT((at_4k + 12) * 4096, kMaxStepTokens);
}

TEST_F(CompareTest, JsonHasTheDocumentedKeys) {
  options_.strategies = {"zebra"};
  const Json row = to_json(compare({8192})).at("rows").at(0);
  for (const char* key : {"model", "cluster", "seq_len", "strategy", "tokens_per_s", "step_s", "utilization",
                          "experts_moved", "memory_bytes"}) {
    EXPECT_TRUE(row.contains(key)) << key;
  }
  EXPECT_TRUE(row["utilization"].contains("attention"));
  EXPECT_TRUE(row["utilization"].contains("expert"));
}

TEST_F(CompareTest, ImpossibleRequestsAreExplained) {
  options_.strategies = {"zebar"};
  try {
    compare({8192});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_NE(std::string(error.what()).find("Did you mean \"zebra\"?"), std::string::npos) << error.what();
  }
  options_.strategies = {"zebra"};
  EXPECT_THROW(compare({0}), ConfigError);
  EXPECT_THROW(compare({i64{1} << 20}), ConfigError);
}

TEST_F(CompareTest, SequenceThatFitsNowhereIsInfeasibleWithTheReason) {
  options_.strategies = {"zebra"};
  options_.sequences = 4800;
  const CompareRow row = compare({8192})[0];
  EXPECT_NE(row.infeasible.find("V100"), std::string::npos);
  EXPECT_TRUE(to_json(std::vector<CompareRow>{row})["rows"][0].contains("infeasible"));
}

}  // namespace
}  // namespace hetermoe
