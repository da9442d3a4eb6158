#include "hetermoe/comm/preflight.h"

#include <gtest/gtest.h>

#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/nccl.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/faults.h"

namespace hetermoe {
namespace {

/// Delays or drops what one pair tells each other.
class BadPair : public TransportDecorator {
 public:
  enum class Kind { kNone, kSlow, kDead, kBroken };
  BadPair(i32 num_devices, DeviceId a, DeviceId b, Kind kind)
      : TransportDecorator(make_in_process_transport(num_devices)), a_(a), b_(b), kind_(kind) {}
  std::string name() const override { return "bad pair"; }
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    if (call.participants[0] == a_ && call.participants[1] == b_) {
      if (kind_ == Kind::kSlow) std::this_thread::sleep_for(std::chrono::milliseconds(30));
      if (kind_ == Kind::kDead) wait_for_abort();
      if (kind_ == Kind::kBroken) throw TransportError("the cable is out");
    }
    return inner().exchange(call, std::move(out));
  }
  void abort(const std::string& reason) override {
    inner().abort(reason);
    const std::lock_guard lock(mutex_);
    aborted_ = true;
    changed_.notify_all();
  }

 private:
  void wait_for_abort() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return aborted_; });
    throw TransportError("aborted");
  }
  DeviceId a_, b_;
  Kind kind_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool aborted_ = false;
};

const PreflightOptions kQuick = {{8, 1 << 10, 64 << 10}, 3, 5, 2, 0.015};

std::vector<PairTimes> measure(i32 num_devices, BadPair::Kind kind, PreflightOptions options = kQuick) {
  BadPair transport(num_devices, 1, 3, kind);
  const Processes alone;
  return measure_pairs(alone, transport, std::vector<i32>(static_cast<std::size_t>(num_devices), 0), options);
}

std::vector<std::string> names_of(i32 num_devices) {
  std::vector<std::string> names;
  for (i32 d = 0; d < num_devices; ++d) names.push_back(fmt::format("device {}", d));
  return names;
}

// Claim (Preflight.*, Mpi.APair*): a pair of devices that is delayed or hears nothing is named, and the
// others are measured; over processes, too
TEST(Preflight, EveryPairIsMeasuredOnce) {
  for (const i32 num_devices : {1, 2, 3, 4, 5, 8}) {
    const std::vector<PairTimes> pairs = measure(num_devices, BadPair::Kind::kNone);
    ASSERT_EQ(static_cast<i32>(pairs.size()), num_devices * (num_devices - 1) / 2);
    std::size_t i = 0;
    for (DeviceId a = 0; a < num_devices; ++a) {
      for (DeviceId b = a + 1; b < num_devices; ++b, ++i) {
        EXPECT_EQ(pairs[i].a, a);
        EXPECT_EQ(pairs[i].b, b);
        EXPECT_EQ(pairs[i].seconds.size(), 3U);
        EXPECT_EQ(pairs[i].link, "same process");
      }
    }
  }
}

TEST(Preflight, ADelayedPairIsNamedAsSlow) {
  const std::vector<PairTimes> pairs = measure(4, BadPair::Kind::kSlow);
  for (const PairTimes& pair : pairs)
    EXPECT_EQ(pair.state == PairState::kSlow, pair.a == 1 && pair.b == 3) << pair.a << " " << pair.b;
  const std::vector<std::string> complaints = pair_complaints(pairs, names_of(4), kQuick);
  ASSERT_EQ(complaints.size(), 1U);
  EXPECT_NE(complaints[0].find("device 1 - device 3 is slow: 8 B took 3"), std::string::npos)
      << complaints[0];
}

TEST(Preflight, ADroppedPairIsNamedAsDeadAndTheOthersAreMeasured) {
  PreflightOptions options = kQuick;
  options.limit = 1;
  const std::vector<PairTimes> pairs = measure(4, BadPair::Kind::kDead, options);
  ASSERT_EQ(pairs.size(), 6U);
  for (const PairTimes& pair : pairs)
    EXPECT_EQ(pair.state == PairState::kDead, pair.a == 1 && pair.b == 3) << pair.a << " " << pair.b;
  const std::vector<std::string> complaints = pair_complaints(pairs, names_of(4), options);
  ASSERT_EQ(complaints.size(), 1U);
  EXPECT_EQ(complaints[0], "device 1 - device 3 is dead: no answer within 1 s");
  const std::string table = pair_table(pairs, names_of(4), options);
  EXPECT_NE(table.find("DEAD"), std::string::npos) << table;
}

/// Devices of one process hand over memory: of many such pairs the table has one row, unless they are slow.
TEST(Preflight, PairsOfOneProcessAreOneRow) {
  const PreflightOptions options = {{8}, 1, 1, 2, 0};
  std::vector<PairTimes> pairs;
  for (DeviceId a = 0; a < 12; ++a)
    for (DeviceId b = a + 1; b < 12; ++b) pairs.push_back({a, b, "same process", {1e-6}, {}});
  pairs[5].seconds = {1e-3};
  pairs.push_back({0, 12, "network", {1e-4}, {}});
  judge(pairs, options);
  const std::string table = pair_table(pairs, names_of(13), options);
  EXPECT_NE(table.find("65 pairs, median"), std::string::npos) << table;
  EXPECT_NE(table.find("SLOW"), std::string::npos) << table;
  EXPECT_NE(table.find("device 0 - device 12"), std::string::npos) << table;
  EXPECT_EQ(std::count(table.begin(), table.end(), '\n'), 5) << table;
}

TEST(Preflight, ABrokenPairSaysWhatTheTransportMet) {
  const std::vector<PairTimes> pairs = measure(4, BadPair::Kind::kBroken);
  EXPECT_EQ(pair_complaints(pairs, names_of(4), kQuick),
            std::vector<std::string>{"device 1 - device 3 is dead: the cable is out"});
}

TEST(Preflight, LinksOfDifferentKindsAreNotCompared) {
  const PreflightOptions options = {{8}, 1, 1, 2, 0};
  std::vector<PairTimes> pairs = {{0, 1, "same host", {1}, {}}, {0, 2, "network", {9}, {}},
                                  {1, 2, "network", {10}, {}},  {0, 3, "network", {21}, {}},
                                  {1, 3, "network", {9}, {}},   {2, 3, "same host", {}, {}}};
  judge(pairs, options);
  const std::vector<PairState> expected = {PairState::kGood, PairState::kGood, PairState::kGood,
                                           PairState::kSlow, PairState::kGood, PairState::kDead};
  for (std::size_t i = 0; i < pairs.size(); ++i) EXPECT_EQ(pairs[i].state, expected[i]) << i;
}

// ---- between processes, over an NCCL of threads ----

using testing::Deadline, testing::FakeNccl, testing::NcclLaunch, testing::NcclWorld, testing::RankThread;

/// What check_processes() gives or throws on each rank, in words.
std::vector<std::string> check_over_nccl(NcclWorld& world, const PreflightOptions& options) {
  std::vector<std::string> ends(world.launches.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < ends.size(); ++r) {
    threads.emplace_back([&, r] {
      const auto rank = static_cast<i32>(r);
      const RankThread processes(world, rank);
      const MakePairTransport make = [&](const std::vector<i32>& rank_of) {
        return make_nccl_transport(processes, std::make_unique<FakeNccl>(world, rank),
                                   {.rank_of = rank_of, .queues = {0}, .device = options.device});
      };
      try {
        const std::vector<std::string> complaints = check_processes(processes, make, options);
        ends[r] = fmt::format("{} complaints", complaints.size());
      } catch (const TransportError& error) {
        ends[r] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return ends;
}

/// Launches in which `rank` sends so many bytes to each of the others: [rank].
std::vector<i64> sends_of(const NcclWorld& world, std::size_t rank, i64 bytes) {
  std::vector<i64> count(world.launches.size(), 0);
  for (const NcclLaunch& launch : world.launches[rank]) {
    for (const auto& call : launch.calls) {
      if (call.sends && call.bytes == bytes) ++count[static_cast<std::size_t>(call.peer)];
    }
  }
  return count;
}

TEST(NcclPreflight, EveryPairSendsEverySizeFromItsOwnMemory) {
  const Deadline deadline(std::chrono::seconds(60));
  PreflightOptions options = kQuick;
  options.slow_floor = 10;  // the machine may be busy
  for (const i32 num_ranks : {2, 3, 4, 5}) {
    NcclWorld world(num_ranks);
    const auto ranks = static_cast<std::size_t>(num_ranks);
    EXPECT_EQ(check_over_nccl(world, options), std::vector<std::string>(ranks, "0 complaints"));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      std::vector<i64> expected(ranks, options.rounds);
      expected[rank] = 0;
      EXPECT_EQ(sends_of(world, rank, 64 << 10), expected) << "rank " << rank << " of " << num_ranks;
    }
  }
}

TEST(NcclPreflight, ACutPairIsNamedByAllRanksWithinTheLimit) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(5);
  world.cut(1, 3);
  PreflightOptions options = kQuick;
  options.limit = 2, options.slow_floor = 10;
  const auto begin = std::chrono::steady_clock::now();
  const std::vector<std::string> ends = check_over_nccl(world, options);
  const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
  const std::string pair = fmt::format("process 1 on {0} - process 3 on {0}", host_name());
  for (const std::string& end : ends) {
    EXPECT_TRUE(end.starts_with("[preflight] " + pair + " is dead: no answer within 2 s; ")) << end;
    EXPECT_TRUE(end.ends_with(" of 10 pairs were not tried after that")) << end;
    EXPECT_EQ(end, ends[0]);
  }
  EXPECT_LT(took.count(), 2.5 * options.limit);
}

TEST(NcclPreflight, ATransportThatNeverComesIsAnError) {
  const Processes alone;
  const auto never = std::make_shared<std::promise<void>>();
  PreflightOptions options = kQuick;
  options.start_limit = 0.2;
  try {
    check_processes(
        alone,
        [never](const std::vector<i32>& rank_of) {
          never->get_future().wait();
          return make_in_process_transport(static_cast<i32>(rank_of.size()));
        },
        options);
    ADD_FAILURE();
  } catch (const TransportError& error) {
    EXPECT_STREQ(error.what(),
                 "[rank 0] the processes do not come together: got nothing for 0.2 s. Is the network between "
                 "the hosts open?");
  }
  never->set_value();
}

}  // namespace
}  // namespace hetermoe
