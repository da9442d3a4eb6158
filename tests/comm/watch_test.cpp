#include "hetermoe/comm/watch.h"

#include <gtest/gtest.h>

#include <future>

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

}  // namespace
}  // namespace hetermoe::testing
