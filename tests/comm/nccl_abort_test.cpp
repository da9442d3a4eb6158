#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <thread>

#include "hetermoe/base/index.h"
#include "hetermoe/comm/nccl.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/faults.h"

// Aborts of the NCCL transport while transfers are in flight: whatever NCCL does, the process ends.
namespace hetermoe::testing {
namespace {

/// Rank 0 of two, with two transfers whose peer never comes, each on a communicator of its own.
struct Aborted {
  bool is_lazy = false;  ///< transfers are launched, and lanes wait for them
  i64 first_turn = 0;    ///< not 0: the turn of the transfers never comes
  std::function<void()> on_launch{}, on_abort{}, on_leave{};
  std::function<void()> until_in_flight{};  ///< called before the abort
  Seconds abort_patience = 0.1, abort_limit = 5;
};

constexpr std::array<i32, 2> kQueues = {1, 2};

std::unique_ptr<Transport> transport_of_rank_0(NcclWorld& world, const Processes& processes,
                                               const Aborted& how) {
  const NcclOptions options = {.rank_of = {0, 1},
                               .queues = {kQueues.begin(), kQueues.end()},
                               .device = c10::DeviceType::CPU,
                               .abort_patience = how.abort_patience,
                               .abort_limit = how.abort_limit};
  std::thread other([&] {
    const RankThread second(world, 1);
    make_nccl_transport(second, std::make_unique<FakeNccl>(world, 1), options);
  });
  auto nccl = std::make_unique<FakeNccl>(world, 0);
  nccl->is_lazy = how.is_lazy;
  nccl->on_launch = how.on_launch;
  nccl->on_abort = how.on_abort;
  nccl->on_leave = how.on_leave;
  std::unique_ptr<Transport> transport = make_nccl_transport(processes, std::move(nccl), options);
  other.join();
  return transport;
}

/// The error of a transfer that the peer never joins.
std::string error_of_transfer(Transport& transport, i32 queue, i64 turn) {
  const std::vector<DeviceId> both = {0, 1};
  const std::vector<MessageShape> expected(2, {.numbers = 1, .values = 0, .tensors = {}});
  std::vector<Message> out(2);
  for (Message& message : out) message.numbers = {7};
  return error_of<TransportError>([&] {
    transport.exchange({.op = 3,
                        .name = "reduce",
                        .self = 0,
                        .participants = both,
                        .queue = queue,
                        .turn = turn,
                        .expected = expected},
                       std::move(out));
  });
}

/// Both transfers end with an error.
void abort_in_flight(const Aborted& how) {
  const Deadline deadline(std::chrono::seconds(10));
  NcclWorld world(2);
  const RankThread processes(world, 0);
  const std::unique_ptr<Transport> transport = transport_of_rank_0(world, processes, how);
  transport->begin_step();
  std::array<std::string, 2> errors;
  std::vector<std::thread> lanes;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    lanes.emplace_back([&, i] {
      errors[i] = error_of_transfer(*transport, kQueues[i], how.first_turn + static_cast<i64>(i));
    });
  }
  if (how.until_in_flight) how.until_in_flight();
  transport->abort("[device 0 experts.F] a planted fault");
  for (std::thread& lane : lanes) lane.join();
  for (const std::string& error : errors) EXPECT_NE(error, "no error");
}

/// Opens when it was passed so often.
class Count {
 public:
  explicit Count(int wanted) : wanted_(wanted) {}
  void pass() {
    const std::lock_guard lock(mutex_);
    ++passed_;
    changed_.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return passed_ >= wanted_; });
  }

 private:
  const int wanted_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int passed_ = 0;
};

TEST(NcclAbort, EndsTransfersBeforeTheirLaunch) { abort_in_flight({.first_turn = 7}); }

TEST(NcclAbort, EndsATransferInsideItsLaunchAndTheOneBehindIt) {
  Gate launching;
  abort_in_flight({.on_launch = [&] { launching.open(); }, .until_in_flight = [&] { launching.wait(); }});
}

TEST(NcclAbort, EndsLaunchedTransfersWhosePeerIsLate) {
  Count launched(2);
  abort_in_flight(
      {.is_lazy = true, .on_launch = [&] { launched.pass(); }, .until_in_flight = [&] { launched.wait(); }});
}

/// As NCCL does: freeing a communicator waits for the GPU, which waits for the kernels of all others.
void wait_for_all(Count& aborting) {
  aborting.pass();
  aborting.wait();
}

TEST(NcclAbort, OfACommunicatorMayWaitForThatOfAllOthers) {
  Count launched(2), aborting(kQueues.size());
  abort_in_flight({.is_lazy = true,
                   .on_launch = [&] { launched.pass(); },
                   .on_abort = [&] { wait_for_all(aborting); },
                   .until_in_flight = [&] { launched.wait(); }});
}

TEST(NcclAbort, HoldsNobodyWhoAsksForTheHealthMeanwhile) {
  const Deadline deadline(std::chrono::seconds(10));
  Gate aborting, asked;
  NcclWorld world(2);
  const RankThread processes(world, 0);
  const std::unique_ptr<Transport> transport = transport_of_rank_0(world, processes, {.on_abort = [&] {
                                                                     aborting.open();
                                                                     asked.wait();
                                                                   }});
  std::thread aborts([&] { transport->abort("[device 0 experts.F] a planted fault"); });
  aborting.wait();
  transport->check_health();
  EXPECT_TRUE(has(error_of_transfer(*transport, 1, 0), "was aborted: [device 0 experts.F] a planted fault"));
  asked.open();
  aborts.join();
}

class ListeningRank : public RankThread {
 public:
  using RankThread::RankThread;
  void tell_error(const std::string& text) const override { told += text; }
  mutable std::string told;
};

/// What rank 0 tells the others of a transfer that ends with an error, of its own or of NCCL.
std::string told_error(bool is_of_nccl) {
  NcclWorld world(2);
  const ListeningRank processes(world, 0);
  Gate launching;
  const std::unique_ptr<Transport> transport =
      transport_of_rank_0(world, processes, {.on_launch = [&] { launching.open(); }});
  const std::string error = "[device 0 experts.F] out of memory";
  std::thread lane([&] {
    const std::string of_transfer = error_of_transfer(*transport, 1, 0);
    if (is_of_nccl) transport->abort(of_transfer);
  });
  launching.wait();
  if (is_of_nccl)
    world.abort();
  else
    transport->abort(error);
  lane.join();
  return processes.told;
}

TEST(NcclAbort, TellsTheOtherRanksAnErrorOfItsOwnAlone) {
  const Deadline deadline(std::chrono::seconds(10));
  EXPECT_EQ(told_error(false), "[device 0 experts.F] out of memory");
  EXPECT_EQ(told_error(true), "");
}

void abort_without_end(bool inside_launch) {
  Gate never, launching;
  abort_in_flight({.on_launch =
                       [&] {
                         launching.open();
                         if (inside_launch) never.wait();
                       },
                   .on_abort =
                       [&] {
                         if (!inside_launch) never.wait();
                       },
                   .until_in_flight = [&] { launching.wait(); },
                   .abort_limit = 0.5});
}

constexpr const char* kWords =
    "rank 0: transfers are aborted: .device 0 experts.F. a planted fault\nrank 0: NCCL has not ended its "
    "transfers 0.5 s after their abort: this process ends without it\n";

TEST(NcclAbortDeathTest, ThatNeverReturnsEndsTheProcessAfterTheFirstErrorWasSaid) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(abort_without_end(false), ::testing::ExitedWithCode(1), kWords);
}

TEST(NcclAbortDeathTest, AfterWhichALaunchStaysInsideNcclEndsTheProcess) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(abort_without_end(true), ::testing::ExitedWithCode(1), kWords);
}

/// Leaving waits for the other ranks, who are in the next step.
TEST(NcclAbort, TakesThePlaceOfLeavingWhereAnExceptionEndsTheTransport) {
  const Deadline deadline(std::chrono::seconds(10));
  NcclWorld world(2);
  const RankThread processes(world, 0);
  Count aborted(kQueues.size());
  const std::string error = error_of<IoError>([&] {
    const std::unique_ptr<Transport> transport = transport_of_rank_0(
        world, processes, {.on_abort = [&] { aborted.pass(); }, .on_leave = [] { ADD_FAILURE() << "left"; }});
    fail<IoError>("out/checkpoints", "the disk is full");
  });
  EXPECT_EQ(error, "[out/checkpoints] the disk is full");
  aborted.wait();
}

}  // namespace
}  // namespace hetermoe::testing
