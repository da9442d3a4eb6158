#include "hetermoe/comm/watch.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "tests/comm/fake_key_store.h"

namespace hetermoe::testing {
namespace {

/// The store stands still right after this rank has told it that it leaves.
TEST(Watch, ARankThatHasLeftIsNotHeldByAStoreThatStandsStill) {
  StoreWorld world;
  world.values = {{Watch::key(0), "0"}, {Watch::key(1), "0"}};
  StoreAddress address;
  address.rank = 1, address.num_ranks = 2;
  StoreOptions options;
  options.silence = 30;
  auto store = std::make_unique<FakeKeyStore>(world);
  store->on_set = [&](const std::string&, const std::string& value) {
    if (value == "left") world.freeze(true);
  };
  auto watch = std::make_unique<Watch>(address, options, std::vector<std::string>{"rank 0", "rank 1"},
                                       std::move(store));
  watch->leave();
  std::future<void> end = std::async(std::launch::async, [&] { watch.reset(); });
  EXPECT_EQ(end.wait_for(std::chrono::seconds(10)), std::future_status::ready);
  world.freeze(false);
  end.get();
}

TEST(Watch, TheRankThatHoldsTheStoreHearsThatTheOthersHaveLeft) {
  StoreWorld world;
  world.values = {{Watch::key(0), "0"}, {Watch::key(1), "0"}};
  StoreAddress address;
  address.rank = 0, address.num_ranks = 2;
  StoreOptions options;
  options.silence = 30;
  Watch watch(address, options, {"rank 0", "rank 1"}, std::make_unique<FakeKeyStore>(world));
  watch.leave();
  {
    const std::lock_guard lock(world.mutex);
    world.values[Watch::key(1)] = "left";
  }
  watch.await_others(600);
  EXPECT_EQ(watch.left(), (std::vector<bool>{true, true}));
}

/// Rank 1 falls silent. Nobody who takes the loss ends this process; it is asked once.
TEST(Watch, ALostRankThatIsTakenEndsNobody) {
  StoreWorld world;
  world.values = {{Watch::key(0), "0"}, {Watch::key(1), "0"}};
  StoreAddress address;
  address.rank = 0, address.num_ranks = 2;
  StoreOptions options;
  options.silence = 0.4;
  Watch watch(address, options, {"rank 0", "rank 1 on n7"}, std::make_unique<FakeKeyStore>(world));
  std::promise<LostProcess> heard;
  std::atomic<int> asked = 0;
  watch.on_lost([&](const LostProcess& lost) {
    if (asked++ == 0) heard.set_value(lost);
    return true;
  });
  const LostProcess lost = heard.get_future().get();
  EXPECT_EQ(lost.rank, 1);
  EXPECT_TRUE(lost.text.starts_with("[rank 1 on n7] is dead or cut off: no sign of life")) << lost.text;
  std::this_thread::sleep_for(std::chrono::milliseconds(800));
  EXPECT_EQ(asked, 1);
  watch.leave();
  watch.await_others(600);
  EXPECT_FALSE(watch.left()[1]);
}

void watch_a_silent_rank() {
  StoreWorld world;
  world.values = {{Watch::key(0), "0"}, {Watch::key(1), "0"}};
  StoreAddress address;
  address.rank = 0, address.num_ranks = 2;
  StoreOptions options;
  options.silence = 0.4;
  Watch watch(address, options, {"rank 0", "rank 1"}, std::make_unique<FakeKeyStore>(world));
  watch.on_lost([](const LostProcess&) { return false; });
  std::this_thread::sleep_for(std::chrono::seconds(60));
}

TEST(WatchDeathTest, ALostRankThatNobodyTakesEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(watch_a_silent_rank(), ::testing::ExitedWithCode(1), "rank 1. is dead or cut off");
}

}  // namespace
}  // namespace hetermoe::testing
