#include "hetermoe/comm/store_gather.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "tests/comm/fake_key_store.h"
#include "tests/support/error_of.h"

namespace hetermoe::testing {
namespace {

std::vector<bool> nobody_left(i32 num_ranks) { return std::vector<bool>(idx(num_ranks), false); }

/// A rank at the store, with a connection of its own.
struct RankAtStore {
  RankAtStore(StoreWorld& world, i32 rank, i32 num_ranks) : store(world), gather(store, rank, num_ranks) {}
  FakeKeyStore store;
  StoreGather gather;
};

/// Of rank r in round g: of any length and with any bytes.
std::string text_of(i32 rank, i32 round) {
  std::string text = fmt::format("rank {} in\n{} ", rank, round);
  text.push_back('\0');
  return rank % 5 == 3 ? "" : text.append(idx(rank % 7), 'x');
}

TEST(StoreGather, TwoHundredFiftySixRanksNeedFourCallsEach) {
  constexpr i32 kRanks = 256, kRounds = 4;
  StoreWorld world;
  std::vector<i64> most_calls(kRanks, 0);
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      RankAtStore at(world, rank, kRanks);
      for (i32 round = 0; round < kRounds; ++round) {
        const i64 before = at.store.num_calls;
        const std::vector<std::string> all =
            at.gather.gather(text_of(rank, round), 60, [&] { return nobody_left(kRanks); });
        most_calls[idx(rank)] = std::max(most_calls[idx(rank)], at.store.num_calls - before);
        ASSERT_EQ(all.size(), idx(kRanks));
        for (i32 r = 0; r < kRanks; ++r) ASSERT_EQ(all[idx(r)], text_of(r, round)) << "from " << r;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(*std::max_element(most_calls.begin(), most_calls.end()), 4);
  // A text of each rank, and what the last two gathers joined.
  EXPECT_LE(world.values.size(), idx(kRanks + 2));
}

TEST(StoreGather, LargeTextsTravelInPartsThatAreRemovedAgain) {
  constexpr i32 kRanks = 3;
  StoreWorld world;
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < kRanks; ++rank) {
    threads.emplace_back([&, rank] {
      RankAtStore at(world, rank, kRanks);
      const auto large_of = [](i32 r) { return std::string(idx(r * 5) << 20, static_cast<char>('a' + r)); };
      const auto look = [&] { return nobody_left(kRanks); };
      const std::vector<std::string> all = at.gather.gather(large_of(rank), 60, look);
      for (i32 r = 0; r < kRanks; ++r) EXPECT_TRUE(all[idx(r)] == large_of(r)) << r;
      for (int round = 0; round < 2; ++round)
        EXPECT_EQ(at.gather.gather("small", 60, look), std::vector<std::string>(kRanks, "small"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const auto& [key, value] : world.values) EXPECT_LT(value.size(), 100U) << key;
}

TEST(StoreGather, ARankThatDoesNotComeIsNamed) {
  StoreWorld world;
  RankAtStore first(world, 0, 3), second(world, 1, 3);
  std::thread other(
      [&] { EXPECT_THROW(second.gather.gather("b", 0.3, [] { return nobody_left(3); }), TransportError); });
  EXPECT_EQ(error_of<TransportError>([&] {
              first.gather.gather("a", 0.3, [] { return nobody_left(3); });
            }).find("[rank 2] did not come within 0.3 s: rank 0 waits."),
            0U);
  other.join();
}

TEST(StoreGather, ARankThatLeftIsNamedLongBeforeTheLimit) {
  StoreWorld world;
  RankAtStore first(world, 0, 2);
  EXPECT_EQ(error_of<TransportError>([&] {
              first.gather.gather("a", 600, [] { return std::vector<bool>{false, true}; });
            }),
            "[rank 1] ended while rank 0 waits for it in a gather");
}

TEST(StoreGather, ARankAloneAsksNobody) {
  StoreWorld world;
  RankAtStore alone(world, 0, 1);
  EXPECT_EQ(alone.gather.gather("a", 1, [] { return nobody_left(1); }), std::vector<std::string>{"a"});
  EXPECT_EQ(alone.store.num_calls, 0);
}

}  // namespace
}  // namespace hetermoe::testing
