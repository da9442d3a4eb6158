#include "hetermoe/routing/tiles.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "hetermoe/routing/synthetic.h"

namespace hetermoe {
namespace {

using Counts = std::vector<double>;

TEST(Tiles, InTheOrderOfSourcesATileHasThoseThatItsRowsReach) {
  EXPECT_EQ(tile_sources({4, 4, 4}, 4).sorted, (Counts{1, 1, 1}));
  EXPECT_EQ(tile_sources({3, 0, 5}, 4).sorted, (Counts{2, 1}));
  EXPECT_EQ(tile_sources({2, 2, 2, 2}, 3).sorted, (Counts{2, 2, 1}));
  EXPECT_EQ(tile_sources({1, 1, 1}, 8).sorted, (Counts{3}));
  EXPECT_TRUE(tile_sources({0, 0}, 8).sorted.empty());
}

/// Over all orders of the rows.
Counts by_all_orders(const std::vector<i64>& rows, i64 tile) {
  std::vector<std::size_t> order;
  for (std::size_t s = 0; s < rows.size(); ++s)
    order.insert(order.end(), static_cast<std::size_t>(rows[s]), s);
  Counts sums((order.size() + static_cast<std::size_t>(tile) - 1) / static_cast<std::size_t>(tile), 0);
  double orders = 0;
  do {  // equal rows in any order are one order here, so all count alike
    ++orders;
    for (std::size_t t = 0; t < sums.size(); ++t) {
      const auto begin = order.begin() + static_cast<std::ptrdiff_t>(t) * tile;
      sums[t] += static_cast<double>(
          std::set<std::size_t>(begin, begin + std::min<std::ptrdiff_t>(tile, order.end() - begin)).size());
    }
  } while (std::next_permutation(order.begin(), order.end()));
  for (double& sum : sums) sum /= orders;
  return sums;
}

TEST(Tiles, InRandomOrderTheyAreExpected) {
  for (const auto& [rows, tile] : std::vector<std::pair<std::vector<i64>, i64>>{
           {{4, 4, 4}, 4}, {{1, 6, 2}, 4}, {{5, 0, 3}, 3}, {{2, 2}, 7}}) {
    const Counts got = tile_sources(rows, tile).shuffled, expected = by_all_orders(rows, tile);
    ASSERT_EQ(got.size(), expected.size());
    for (std::size_t t = 0; t < got.size(); ++t) EXPECT_NEAR(got[t], expected[t], 1e-9) << t;
  }
}

TEST(Tiles, OfATraceAreThoseOfItsMicrobatches) {
  TraceHeader header;
  header.layers = {0, 2}, header.num_experts = 2, header.top_k = 1;
  TraceStep step;
  for (const int microbatch : {0, 0, 1, 1}) {
    TraceSequence sequence;
    sequence.tokens = sequence.prompt = 6, sequence.microbatch = static_cast<std::uint16_t>(microbatch);
    step.sequences.push_back(sequence);
  }
  index_tokens(step);
  // [sequences][experts]
  step.counts = {{4, 2, 2, 4, 6, 0, 0, 6}, {0, 6, 6, 0, 0, 6, 6, 0}};
  TileAnalyser tiles(header, 4, 2);
  tiles.add(step);
  // Layer 0: (4, 2) and (2, 4) rows of both experts: two tiles each; then (6, 0) and (0, 6).
  EXPECT_EQ(tiles.layers()[0].sorted.count, 8);
  EXPECT_DOUBLE_EQ(tiles.layers()[0].sorted.mean, (1 + 1 + 2 + 1 + 1 + 1 + 1 + 1) / 8.0);
  EXPECT_EQ(tiles.layers()[1].sorted.mean, 1);
  EXPECT_EQ(tiles.layers()[1].shuffled.mean, 1);
  EXPECT_GE(tiles.layers()[0].shuffled.mean, tiles.layers()[0].sorted.mean);
  EXPECT_EQ(to_json(tiles).at("layers")[1].at("tiles"), 8);
}

}  // namespace
}  // namespace hetermoe
