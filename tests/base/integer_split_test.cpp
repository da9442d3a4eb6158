#include "hetermoe/base/integer_split.h"

#include <gtest/gtest.h>

#include <numeric>

namespace hetermoe {
namespace {

TEST(ProportionalSplit, GivesLargestRemaindersFirst) {
  EXPECT_EQ(proportional_split(10, {1, 1, 1}), (std::vector<i64>{4, 3, 3}));
  EXPECT_EQ(proportional_split(10, {3, 1}),
            (std::vector<i64>{8, 2}));  // 7.5 and 2.5: the tie goes to the first
  EXPECT_EQ(proportional_split(2, {1, 1, 1}), (std::vector<i64>{1, 1, 0}));
  EXPECT_EQ(proportional_split(5, {0, 1}), (std::vector<i64>{0, 5}));
  EXPECT_EQ(proportional_split(0, {1, 2}), (std::vector<i64>{0, 0}));
}

TEST(Spread, HitsRowAndColumnSumsEvenly) {
  EXPECT_EQ(spread({2, 2, 2}, {3, 3}), (std::vector<std::vector<i64>>{{1, 1}, {1, 1}, {1, 1}}));
  const std::vector<i64> rows = {7, 7, 6, 6}, columns = {13, 9, 4, 0};
  const std::vector<std::vector<i64>> parts = spread(rows, columns);
  for (std::size_t r = 0; r < rows.size(); ++r) {
    EXPECT_EQ(std::accumulate(parts[r].begin(), parts[r].end(), i64{0}), rows[r]);
  }
  for (std::size_t c = 0; c < columns.size(); ++c) {
    i64 sum = 0;
    for (const std::vector<i64>& row : parts) {
      sum += row[c];
      EXPECT_LE(std::abs(row[c] * 26 - columns[c] * 7), 2 * 26);
    }
    EXPECT_EQ(sum, columns[c]);
  }
}

TEST(EqualCounts, FollowTheTotalsInWholeExpertsPerDevice) {
  // Four newer devices own half an expert per layer each, four older ones one and a half.
  EXPECT_EQ(equal_counts(4, 8, {4, 4}, {8, 24}, {1, 1}),
            (std::vector<std::vector<i64>>{{0, 2}, {1, 1}, {0, 2}, {1, 1}}));
  // Nothing adds up to 7.
  EXPECT_TRUE(equal_counts(4, 7, {4, 4}, {8, 20}, {1, 1}).empty());
  // 2 a + 3 b + 1 c = 12 in every layer, near the totals.
  const std::vector<i64> sizes = {2, 3, 1}, totals = {30, 60, 30};
  std::vector<i64> given(3, 0);
  for (const std::vector<i64>& of_layer : equal_counts(10, 12, sizes, totals, {1, 2, 1})) {
    i64 sum = 0;
    for (std::size_t p = 0; p < sizes.size(); ++p) {
      given[p] += of_layer[p] * sizes[p];
      sum += of_layer[p] * sizes[p];
    }
    EXPECT_EQ(sum, 12);
  }
  for (std::size_t p = 0; p < sizes.size(); ++p) EXPECT_LE(std::abs(given[p] - totals[p]), sizes[p]);
}

TEST(BalanceUnits, MinimizesTheLatestFinish) {
  // Loads 0, 3; costs 1, 2: nine units finish at 7.
  EXPECT_EQ(balance_units(9, {0, 3}, {1, 2}, {100, 100}), (std::vector<i64>{7, 2}));
  EXPECT_EQ(balance_units(9, {0, 3}, {1, 2}, {4, 100}), (std::vector<i64>{4, 5}));
  EXPECT_EQ(balance_units(9, {0, 3}, {1, 2}, {4, 0}), (std::vector<i64>{4, 0}));
}

}  // namespace
}  // namespace hetermoe
