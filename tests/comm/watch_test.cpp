#include "hetermoe/comm/watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/comm/fake_key_store.h"

namespace hetermoe::testing {
namespace {

/// Two ranks, of which this is one. The other shows no sign of life but what a test writes into the store.
struct TwoRanks {
  StoreWorld world;
  StoreAddress address;
  StoreOptions options;
  TwoRanks(i32 rank, Seconds silence) {
    world.values = {{Watch::key(0), "0"}, {Watch::key(1), "0"}};
    address.rank = rank, address.num_ranks = 2;
    options.silence = silence;
  }
  std::unique_ptr<FakeKeyStore> store() { return std::make_unique<FakeKeyStore>(world); }
  std::unique_ptr<Watch> watch(std::unique_ptr<FakeKeyStore> store) {
    return std::make_unique<Watch>(address, options, std::vector<std::string>{"rank 0", "rank 1 on n7"},
                                   std::move(store));
  }
};

/// The store stands still right after this rank has told it that it leaves.
TEST(Watch, ARankThatHasLeftIsNotHeldByAStoreThatStandsStill) {
  TwoRanks ranks(1, 30);
  auto store = ranks.store();
  store->on_set = [&](const std::string&, const std::string& value) {
    if (value == "left") ranks.world.freeze(true);
  };
  auto watch = ranks.watch(std::move(store));
  watch->leave();
  std::future<void> end = std::async(std::launch::async, [&] { watch.reset(); });
  EXPECT_EQ(end.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  ranks.world.freeze(false);
  end.get();
}

TEST(Watch, TheRankThatHoldsTheStoreHearsThatTheOthersHaveLeft) {
  TwoRanks ranks(0, 30);
  const auto watch = ranks.watch(ranks.store());
  watch->leave();
  {
    const std::lock_guard lock(ranks.world.mutex);
    ranks.world.values[Watch::key(1)] = "left";
  }
  watch->await_others(600);
  EXPECT_EQ(watch->left(), (std::vector<bool>{true, true}));
}

/// A loss that is taken ends nobody, and is told once.
TEST(Watch, ALostRankThatIsTakenEndsNobody) {
  TwoRanks ranks(0, 0.4);
  const auto watch = ranks.watch(ranks.store());
  std::promise<LostProcess> heard;
  std::atomic<int> asked = 0;
  watch->on_lost([&](const LostProcess& lost) {
    if (asked++ == 0) heard.set_value(lost);
    return true;
  });
  const LostProcess lost = heard.get_future().get();
  EXPECT_EQ(lost.rank, 1);
  EXPECT_TRUE(lost.text.starts_with("[rank 1 on n7] is dead or cut off: no sign of life")) << lost.text;
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  EXPECT_EQ(asked, 1);
  watch->leave();
  watch->await_others(600);
  EXPECT_FALSE(watch->left()[1]);
}

/// A transfer failed, and all ranks live.
TEST(Watch, TheWaitForASilenceEndsWhereNobodyIsSilent) {
  TwoRanks ranks(1, 2);
  auto store = ranks.store();
  i64 beats = 0;
  store->on_set = [&](const std::string&, const std::string&) {  // the other one's heart beats along
    const std::lock_guard lock(ranks.world.mutex);
    ranks.world.values[Watch::key(0)] = std::to_string(++beats);
  };
  const auto watch = ranks.watch(std::move(store));
  watch->await_silence();
  EXPECT_FALSE(watch->left()[0]);
}

void watch_a_silent_rank() {
  TwoRanks ranks(0, 0.4);
  const auto watch = ranks.watch(ranks.store());
  watch->on_lost([](const LostProcess&) { return false; });
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

/// Long before the usual silence is over.
void await_a_silent_rank() {
  TwoRanks ranks(0, 8);
  const auto watch = ranks.watch(ranks.store());
  watch->await_silence();
}

TEST(WatchDeathTest, AfterAFailedTransferAShortSilenceIsADeath) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(await_a_silent_rank(), ::testing::ExitedWithCode(1),
              "rank 1 on n7. is dead or cut off: no sign of life for 2 s");
}

TEST(WatchDeathTest, ALostRankThatNobodyTakesEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(watch_a_silent_rank(), ::testing::ExitedWithCode(1), "rank 1 on n7. is dead or cut off");
}

}  // namespace
}  // namespace hetermoe::testing
