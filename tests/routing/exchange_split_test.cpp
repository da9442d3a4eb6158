#include "hetermoe/routing/exchange_split.h"

#include <gtest/gtest.h>

#include <numeric>
#include <random>

namespace hetermoe {
namespace {

using Table = std::vector<std::vector<i64>>;

/// Four owners on two nodes that are sources as well.
SplitLayer four_owners(CopySplit kind) {
  SplitLayer layer;
  layer.kind = kind;
  layer.speeds = {1, 1, 1, 1};
  layer.room.nodes = {0, 0, 1, 1};
  layer.source_owner = {0, 1, 2};
  layer.source_node = {0, 0, 1};
  return layer;
}

TEST(SourceQuotas, KeepCopiesHereThenOnTheNode) {
  const SplitLayer layer = four_owners(CopySplit::kExact);
  const std::vector<i64> copies = {5, 4, 6};
  const std::vector<i32> odd = {1, 3}, even = {0, 2};
  const std::vector<i64> nine_six = {9, 6}, eight_seven = {8, 7};
  EXPECT_EQ(source_quotas(layer, copies, odd, nine_six), (Table{{5, 0}, {4, 0}, {0, 6}}));
  EXPECT_EQ(source_quotas(layer, copies, even, eight_seven), (Table{{5, 0}, {3, 1}, {0, 6}}));
}

/// [owners] copies that come there from random ids of each source, by the rule that both executor and
/// simulator use; [chunks].
std::vector<std::vector<i64>> arriving(const SplitLayer& layer, u64 seed, std::size_t num_chunks) {
  std::mt19937_64 random(seed);
  const auto num_experts = static_cast<i64>(layer.owners.size());
  std::vector<SourceCopies> chunks;
  std::vector<std::vector<std::vector<i32>>> ids(num_chunks);
  for (std::size_t c = 0; c < num_chunks; ++c) {
    chunks.emplace_back();
    for (std::size_t s = 0; s < layer.source_owner.size(); ++s) {
      ids[c].emplace_back();
      const u64 num_ids = s == 1 ? 0 : random() % 90;
      for (u64 i = 0; i < num_ids; ++i)
        ids[c].back().push_back(static_cast<i32>(std::min(random() % 12, random() % 12)) - 1);
      chunks.back().push_back(count_copies<i32>(ids[c].back(), num_experts));
    }
  }
  const std::vector<ExchangeSplit> split = split_exchange(layer, chunks);
  std::vector<std::vector<i64>> out(num_chunks, std::vector<i64>(layer.speeds.size(), 0));
  for (std::size_t c = 0; c < num_chunks; ++c) {
    for (std::size_t s = 0; s < ids[c].size(); ++s) {
      for (const i32 to : copy_destinations<i32>(ids[c][s], split[c].of_source[s])) {
        if (to >= 0) ++out[c][static_cast<std::size_t>(to)];
      }
    }
  }
  return out;
}

/// Experts 0..7, two on each owner, the first of each owner also on the next owner.
OwnerTable ring() {
  OwnerTable owners;
  for (i32 e = 0; e < 8; ++e) {
    owners.push_back({{e / 2, 1}});
    if (e % 2 == 0)
      owners.back() = {{std::min(e / 2, (e / 2 + 1) % 4), 0.5}, {std::max(e / 2, (e / 2 + 1) % 4), 0.5}};
  }
  return owners;
}

TEST(ExchangeSplit, SharesLeaveTheTableAlone) {
  SplitLayer layer = four_owners(CopySplit::kShares);
  layer.owners = ring();
  const std::vector<ExchangeSplit> split = split_exchange(layer, {SourceCopies(3, std::vector<i64>(8, 3))});
  ASSERT_EQ(split.size(), 1u);
  for (const OwnerTable& table : split[0].of_source) {
    ASSERT_EQ(table.size(), 8u);
    EXPECT_EQ(table[0].size(), 2u);
    EXPECT_EQ(table[0][0].share, 0.5);
  }
}

TEST(ExchangeSplit, WholeCopiesArriveAsTheExactSplitSays) {
  for (u64 seed = 0; seed < 200; ++seed) {
    SplitLayer layer = four_owners(CopySplit::kShares);
    layer.owners = ring();
    const auto worst = [&](CopySplit kind, i64 slots) {
      layer.kind = kind;
      layer.room.slots = slots;
      const std::vector<i64> load = arriving(layer, seed, 1)[0];
      return *std::max_element(load.begin(), load.end());
    };
    const i64 shares = worst(CopySplit::kShares, 0), exact = worst(CopySplit::kExact, 0),
              guests = worst(CopySplit::kGuests, 1);
    EXPECT_LE(exact, shares);
    EXPECT_LE(guests, exact);
  }
}

TEST(ExchangeSplit, EveryChunkIsDividedAndGuestsAreChosenOnce) {
  SplitLayer layer = four_owners(CopySplit::kGuests);
  layer.owners = ring();
  layer.room.slots = 1;
  const SourceCopies skewed = {{30, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 2, 0, 0, 0, 0}};
  const SourceCopies other = {{0, 40, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 0, 0, 0, 0, 0}, {0, 0, 0, 2, 0, 0, 0, 0}};
  const std::vector<ExchangeSplit> split = split_exchange(layer, {skewed, other});
  ASSERT_EQ(split.size(), 2u);
  EXPECT_EQ(split[0].guests, split[1].guests);
  EXPECT_FALSE(split[0].guests.empty());
}

TEST(ExchangeSplit, ASourceSendsExactlyItsQuota) {
  SplitLayer layer = four_owners(CopySplit::kExact);
  layer.owners = {{{0, 0.5}, {1, 0.5}}, {{0, 1}}};
  layer.speeds = {1, 1, 1, 1};
  // Expert 0 has 7 copies, expert 1 has 4: 5 or 6 each.
  const std::vector<ExchangeSplit> split = split_exchange(layer, {{{5, 4}, {2, 0}, {0, 0}}});
  const std::vector<i32> ids = {0, 0, 0, 0, 0, 1, 1, 1, 1};
  const std::vector<i32> to = copy_destinations<i32>(ids, split[0].of_source[0]);
  EXPECT_EQ(std::count(to.begin(), to.end(), 0), 4 + 2);
  const std::vector<i32> second = {0, 0};
  EXPECT_EQ(copy_destinations<i32>(second, split[0].of_source[1]), (std::vector<i32>{1, 1}));
}

}  // namespace
}  // namespace hetermoe
