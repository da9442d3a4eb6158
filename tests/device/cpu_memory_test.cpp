#include "hetermoe/device/cpu_memory.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <cstdint>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {
namespace {

constexpr std::size_t kMiB = 1 << 20;

TEST(BlockCache, ABlockComesBackForItsSizeAndASlightlySmallerOne) {
  BlockCache cache;
  void* const block = cache.take(10 * kMiB);
  ASSERT_TRUE(cache.give_back(block));
  EXPECT_EQ(cache.take(10 * kMiB), block);
  ASSERT_TRUE(cache.give_back(block));
  EXPECT_EQ(cache.take(9 * kMiB), block);
  EXPECT_EQ(cache.usage().kept, 0U);
  ASSERT_TRUE(cache.give_back(block));
}

TEST(BlockCache, TheTightestFitIsTaken) {
  BlockCache cache;
  void* const large = cache.take(12 * kMiB);
  void* const fit = cache.take(10 * kMiB);
  ASSERT_TRUE(cache.give_back(fit));
  ASSERT_TRUE(cache.give_back(large));
  EXPECT_EQ(cache.take(10 * kMiB), fit);
  ASSERT_TRUE(cache.give_back(fit));
}

TEST(BlockCache, AMuchSmallerRequestDoesNotHoldALargeBlock) {
  BlockCache cache;
  void* const block = cache.take(64 * kMiB);
  ASSERT_TRUE(cache.give_back(block));
  void* const small = cache.take(2 * kMiB);
  EXPECT_NE(small, block);
  EXPECT_EQ(cache.usage().in_use, 2 * kMiB);
  ASSERT_TRUE(cache.give_back(small));
}

TEST(BlockCache, NeverHoldsMoreThanWasInUseAtOnce) {
  BlockCache cache;
  void* const first = cache.take(8 * kMiB);
  void* const second = cache.take(32 * kMiB);
  ASSERT_TRUE(cache.give_back(first));
  ASSERT_TRUE(cache.give_back(second));
  EXPECT_EQ(cache.usage().kept, 40 * kMiB);
  void* const third = cache.take(16 * kMiB);
  EXPECT_EQ(cache.usage().kept, 8 * kMiB);
  EXPECT_EQ(cache.usage().most_in_use, 40 * kMiB);
  ASSERT_TRUE(cache.give_back(third));
}

TEST(BlockCache, WithinTheSlackNothingGivesWay) {
  BlockCache cache(16 * kMiB);
  void* const first = cache.take(8 * kMiB);
  ASSERT_TRUE(cache.give_back(first));
  void* const second = cache.take(16 * kMiB);
  EXPECT_EQ(cache.usage().kept, 8 * kMiB);
  ASSERT_TRUE(cache.give_back(second));
  EXPECT_EQ(cache.take(8 * kMiB), first);
  ASSERT_TRUE(cache.give_back(first));
}

TEST(BlockCache, TheSmallestThatIsEnoughGivesWay) {
  BlockCache cache;
  std::vector<void*> blocks;
  for (const std::size_t size : {32, 2, 8, 8}) blocks.push_back(cache.take(size * kMiB));
  for (void* block : blocks) ASSERT_TRUE(cache.give_back(block));
  void* const other = cache.take(5 * kMiB);
  EXPECT_EQ(cache.usage().kept, (32 + 2 + 8) * kMiB);
  EXPECT_EQ(cache.take(8 * kMiB), blocks[3]) << "the other 8 were kept longer";
  EXPECT_EQ(cache.take(2 * kMiB), blocks[1]);
  EXPECT_EQ(cache.take(32 * kMiB), blocks[0]);
  for (void* block : {blocks[0], blocks[1], blocks[3], other}) ASSERT_TRUE(cache.give_back(block));
}

TEST(BlockCache, BlocksOfOthersAreNotItsOwn) {
  BlockCache cache;
  int other = 0;
  EXPECT_FALSE(cache.give_back(&other));
  void* const block = cache.take(kMiB);
  EXPECT_TRUE(cache.give_back(block));
  EXPECT_FALSE(cache.give_back(block)) << "twice";
}

TEST(BlockCache, MoreThanThereIsIsBadAlloc) {
  BlockCache cache;
  EXPECT_THROW(cache.take(std::size_t{1} << 60), std::bad_alloc);
  EXPECT_EQ(cache.usage().in_use, 0U);
}

/// Threads that take, fill, look and give back: nobody's bytes change.
TEST(BlockCache, ThreadsDoNotShareBlocks) {
  BlockCache cache;
  const auto work = [&cache](unsigned seed) {
    std::mt19937 random(seed);
    struct Held {
      unsigned char* data;
      std::size_t bytes;
      int value;
    };
    std::vector<Held> held;
    for (int i = 0; i < 300; ++i) {
      if (held.size() < 6) {
        const std::size_t bytes = 1 + random() % (4 * kMiB);
        const int value = static_cast<int>(random() % 256);
        held.push_back({static_cast<unsigned char*>(cache.take(bytes)), bytes, value});
        EXPECT_EQ(reinterpret_cast<std::uintptr_t>(held.back().data) % 64, 0U);
        held.back().data[0] = held.back().data[bytes - 1] = static_cast<unsigned char>(value);
      } else {
        const std::size_t which = random() % held.size();
        const Held one = held[which];
        held.erase(held.begin() + static_cast<std::ptrdiff_t>(which));
        EXPECT_EQ(one.data[0], one.value);
        EXPECT_EQ(one.data[one.bytes - 1], one.value);
        EXPECT_TRUE(cache.give_back(one.data));
      }
    }
    for (const Held& one : held) EXPECT_TRUE(cache.give_back(one.data));
  };
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < 4; ++t) threads.emplace_back(work, t);
  for (std::thread& thread : threads) thread.join();
  const BlockCache::Usage usage = cache.usage();
  EXPECT_EQ(usage.in_use, 0U);
  EXPECT_LE(usage.kept, usage.most_in_use);
}

/// What malloc is told, and what it refuses, when it takes thresholds for blocks of their own up to `most`.
struct Told {
  std::vector<std::pair<int, int>> values;
  std::vector<std::string> refused;
};
Told tell_malloc(int most) {
  Told told;
  told.refused = tune_malloc([&](int parameter, int value) {
    told.values.emplace_back(parameter, value);
    return parameter == M_MMAP_THRESHOLD && value > most ? 0 : 1;
  });
  return told;
}

using Values = std::vector<std::pair<int, int>>;

TEST(TuneMalloc, NothingElseIsTriedWhereMallocTakesAll) {
  const Told told = tell_malloc(1 << 30);
  EXPECT_EQ(told.values,
            (Values{{M_MMAP_THRESHOLD, 1 << 30}, {M_TRIM_THRESHOLD, 1 << 30}, {M_ARENA_MAX, 1}}));
  EXPECT_TRUE(told.refused.empty());
}

TEST(TuneMalloc, AnOldLibraryGetsTheLargestThresholdThatItTakes) {
  const Told told = tell_malloc(32 << 20);
  EXPECT_EQ(told.values, (Values{{M_MMAP_THRESHOLD, 1 << 30},
                                 {M_MMAP_THRESHOLD, 32 << 20},
                                 {M_TRIM_THRESHOLD, 1 << 30},
                                 {M_ARENA_MAX, 1}}));
  EXPECT_TRUE(told.refused.empty());
}

TEST(TuneMalloc, WhatIsRefusedAltogetherIsNamed) {
  EXPECT_EQ(tell_malloc(0).refused, std::vector<std::string>{"M_MMAP_THRESHOLD"});
}

}  // namespace
}  // namespace hetermoe
