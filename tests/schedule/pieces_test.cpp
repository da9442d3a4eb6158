#include "hetermoe/schedule/pieces.h"

#include <gtest/gtest.h>

namespace hetermoe {
namespace {

std::vector<std::vector<Bytes>> dealt(const std::vector<Bytes>& sizes, std::size_t count) {
  std::vector<std::vector<Bytes>> all;
  for (const std::vector<std::size_t>& piece : deal_pieces(sizes, count)) {
    all.emplace_back();
    for (const std::size_t i : piece) all.back().push_back(sizes[i]);
  }
  return all;
}

TEST(Pieces, LargestFirstToTheLightest) {
  EXPECT_EQ(dealt({1, 2, 3, 4, 5, 6, 7}, 3), (std::vector<std::vector<Bytes>>{{7, 2, 1}, {6, 3}, {5, 4}}));
}

TEST(Pieces, TheBoundIsMet) {  // the optimum is 9: {5, 4}, {5, 4}, {3, 3, 3}
  Bytes largest = 0;
  for (const std::vector<Bytes>& piece : dealt({5, 5, 4, 4, 3, 3, 3}, 3))
    largest = std::max(largest, std::accumulate(piece.begin(), piece.end(), Bytes{0}));
  EXPECT_EQ(largest, 11);
}

TEST(Pieces, FewerThingsThanPiecesLeaveSomeEmpty) {
  EXPECT_EQ(dealt({2}, 3), (std::vector<std::vector<Bytes>>{{2}, {}, {}}));
}

}  // namespace
}  // namespace hetermoe
