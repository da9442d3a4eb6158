#include "hetermoe/comm/nccl.h"

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "hetermoe/base/index.h"
#include "hetermoe/comm/wire.h"
#include "hetermoe/ops/op_row.h"
#include "tests/support/error_of.h"
#include "tests/support/fake_nccl.h"
#include "tests/support/faults.h"

// The NCCL transport over an NCCL of threads: what arrives, and in which order everybody launches.
namespace hetermoe::testing {
namespace {

constexpr std::size_t kMove = static_cast<std::size_t>(Queue::kMove);

std::vector<i32> one_each(i32 num_devices) {
  std::vector<i32> rank_of;
  for (i32 d = 0; d < num_devices; ++d) rank_of.push_back(d);
  return rank_of;
}

NcclOptions on_cpu(i32 num_devices) {
  return {.rank_of = one_each(num_devices),
          .queues = {1, 2, 3, 4},
          .device = c10::DeviceType::CPU,
          .abort_patience = 0.1};
}

struct RanksOptions {
  bool is_lazy = false, has_events = false;  ///< of FakeNccl
  bool tells_ready = false;
};

/// Runs `work` of every rank in a thread of its own.
void run_ranks(NcclWorld& world, const std::function<void(i32, Transport&)>& work, RanksOptions how = {}) {
  const auto num_ranks = static_cast<i32>(world.launches.size());
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < num_ranks; ++rank) {
    threads.emplace_back([&, rank] {
      const RankThread processes(world, rank);
      auto nccl = std::make_unique<FakeNccl>(world, rank);
      nccl->is_lazy = how.is_lazy;
      nccl->has_events = how.has_events;
      NcclOptions options = on_cpu(num_ranks);
      options.tells_ready = how.tells_ready;
      const std::unique_ptr<Transport> transport = make_nccl_transport(processes, std::move(nccl), options);
      work(rank, *transport);
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

const std::vector<MessageShape> kNumbers(2, {.numbers = 1, .values = 0, .tensors = {}});

std::vector<Message> two_numbers() {
  std::vector<Message> out(2);
  for (Message& message : out) message.numbers = {7};
  return out;
}

Message full_message(i32 from, i32 to) {
  Message message;
  message.numbers = {from, to};
  message.values = {0.25 * from};
  message.ready = 1.5;
  message.tensors.push_back(at::full({from, 3}, 10 * from + to, at::kLong));  // rank 0's is empty
  message.tensors.push_back(at::full({2, to}, 0.5 * from, at::kDouble));      // to rank 0 empty
  message.tensors.push_back(at::full({}, 7.0f));
  message.tensors.push_back(at::full({2, 2}, from, at::kBFloat16).t());  // not contiguous
  return message;
}

/// Three ranks tell each other full messages.
void exchange_full_messages(NcclWorld& world) {
  run_ranks(world, [&](i32 rank, Transport& transport) {
    const std::vector<DeviceId> participants = {0, 1, 2};
    std::vector<MessageShape> expected;
    for (const DeviceId from : participants) expected.push_back(shape_of(full_message(from, rank)));
    for (i64 step = 0; step < 3; ++step) {
      transport.begin_step();
      for (i64 turn = 0; turn < 4; ++turn) {
        std::vector<Message> out;
        for (const DeviceId to : participants) out.push_back(full_message(rank, to));
        const std::vector<Message> in = transport.exchange(
            {step, static_cast<OpId>(turn), "test", rank, participants, kMove, turn, expected},
            std::move(out));
        for (const DeviceId from : participants) {
          const Message expected = full_message(from, rank), &got = in[idx(from)];
          EXPECT_EQ(got.numbers, expected.numbers);
          EXPECT_EQ(got.values, expected.values);
          EXPECT_EQ(got.ready, expected.ready);
          ASSERT_EQ(got.tensors.size(), expected.tensors.size());
          for (std::size_t t = 0; t < expected.tensors.size(); ++t) {
            EXPECT_EQ(got.tensors[t].scalar_type(), expected.tensors[t].scalar_type());
            EXPECT_TRUE(at::equal(got.tensors[t], expected.tensors[t])) << t;
          }
        }
      }
    }
  });
}

TEST(Nccl, AMessageArrivesAsItWasSentWithOneLaunch) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(3);
  exchange_full_messages(world);
  for (const auto& launches : world.launches) EXPECT_EQ(launches.size(), 12U);
}

/// What an exchange of tensors alone returns.
std::vector<Message> exchange_tensors(Transport& transport, i32 rank, i64 turn, OpId op) {
  const std::vector<DeviceId> both = {0, 1};
  const std::vector<MessageShape> expected(2, {.numbers = 0, .values = 0, .tensors = {{at::kLong, {3}}}});
  std::vector<Message> out(2);
  for (Message& message : out) message.tensors.push_back(at::full({3}, 10 * rank + turn, at::kLong));
  return transport.exchange({0, op, "move", rank, both, kMove, turn, expected}, std::move(out));
}

/// Two ranks that do not wait for what they launch. Rank 1 comes to its first exchange when rank 0 has
/// launched three; it names its ops as told.
std::vector<std::string> errors_without_waits(const std::vector<OpId>& ops_of_rank_1) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  Gate launched;
  std::vector<std::string> errors(2);
  run_ranks(world,
            [&](i32 rank, Transport& transport) {
              errors[idx(rank)] = error_of<TransportError>([&] {
                transport.begin_step();
                if (rank == 1) launched.wait();
                std::vector<std::vector<Message>> got;
                for (i64 turn = 0; turn < 3; ++turn)
                  got.push_back(exchange_tensors(
                      transport, rank, turn, rank == 0 ? static_cast<OpId>(turn) : ops_of_rank_1[idx(turn)]));
                launched.open();
                const at::Tensor& last = got[2][idx(1 - rank)].tensors[0];
                last.zero_();
                while (last[0].item<i64>() != 10 * (1 - rank) + 2) transport.begin_step();
              });
            },
            {.is_lazy = true, .has_events = true});
  return errors;
}

TEST(Nccl, AnExchangeOfTensorsReturnsWhenItIsLaunched) {
  EXPECT_EQ(errors_without_waits({0, 1, 2}), std::vector<std::string>(2, "no error"));
}

TEST(Nccl, AStampThatNobodyWaitedForIsLookedAtLater) {
  for (const std::string& error : errors_without_waits({0, 7, 2}))
    EXPECT_TRUE(has(error, "do not run the same schedule in the same order")) << error;
}

/// Rank 0 has two transfers: first with rank 1, which comes only when the second, with rank 2, has ended.
TEST(Nccl, ALatePeerDoesNotStopTheTransfersOfOthers) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(3);
  Gate second_ended;
  run_ranks(world,
            [&](i32 rank, Transport& transport) {
              const auto meet = [&](DeviceId a, DeviceId b, i32 queue, i64 turn) {
                const std::vector<DeviceId> both = {a, b};
                const std::vector<MessageShape> expected(2, shape_of(full_message(1, 1)));
                std::vector<Message> out(2);
                for (Message& message : out) message = full_message(1, 1);
                transport.exchange({0, static_cast<OpId>(queue), "test", rank, both, queue, turn, expected},
                                   std::move(out));
              };
              transport.begin_step();
              if (rank == 1) {
                second_ended.wait();
                meet(0, 1, 1, 0);
              } else if (rank == 2) {
                meet(0, 2, 2, 0);
              } else {
                std::thread first([&] { meet(0, 1, 1, 0); });
                meet(0, 2, 2, 1);
                second_ended.open();
                first.join();
              }
            },
            {.is_lazy = true});
}

/// The text of the error of each rank.
std::vector<std::string> errors_of(NcclWorld& world, const std::function<void(i32, Transport&)>& work) {
  std::vector<std::string> errors(world.launches.size());
  run_ranks(world, [&](i32 rank, Transport& transport) {
    try {
      transport.begin_step();
      work(rank, transport);
    } catch (const Error& error) {
      errors[idx(rank)] = error.what();
      transport.abort(error.what());
    }
  });
  return errors;
}

TEST(Nccl, AnotherOrderIsNamedAndNobodyHangs) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  const std::vector<DeviceId> participants = {0, 1};
  const std::vector<std::string> errors = errors_of(world, [&](i32 rank, Transport& transport) {
    const OpId op = rank == 0 ? 17 : 18;
    transport.exchange({0, op, "dispatch.F", rank, participants, 1, 0, kNumbers}, two_numbers());
  });
  EXPECT_TRUE(has(errors[0] + errors[1], "do not run the same schedule in the same order"));
  EXPECT_TRUE(has(errors[0] + errors[1], "sent op 18 of step 0, expected op 17 of step 0") ||
              has(errors[0] + errors[1], "sent op 17 of step 0, expected op 18 of step 0"));
}

/// What rank 0 got from rank 1, who sends an empty tensor and was ready at 2.5.
Message sent_without_content(NcclWorld& world, bool tells_ready) {
  Message got;
  run_ranks(world,
            [&](i32 rank, Transport& transport) {
              const std::vector<DeviceId> both = {0, 1};
              const std::vector<MessageShape> expected(
                  2, {.numbers = 0, .values = 0, .tensors = {{at::kLong, {0, 3}}}});
              std::vector<Message> out(2);
              for (Message& message : out) {
                message.ready = 2.5;
                message.tensors.push_back(at::ones({0, 3}, at::kLong));
              }
              transport.begin_step();
              std::vector<Message> in =
                  transport.exchange({0, 3, "move", rank, both, kMove, 0, expected}, std::move(out));
              if (rank == 0) got = in[1];
            },
            {.tells_ready = tells_ready});
  return got;
}

TEST(Nccl, AMessageWithoutContentDoesNotTravel) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  const Message got = sent_without_content(world, false);
  ASSERT_EQ(got.tensors.size(), 1U);
  EXPECT_EQ(got.tensors[0].sizes(), (std::vector<i64>{0, 3}));
  for (const auto& launches : world.launches) EXPECT_TRUE(launches.empty());
  for (const NcclCopies& copies : world.copies) EXPECT_EQ(copies.to_device + copies.to_host, 0);
}

TEST(Nccl, OnAnEmulatedClockItTellsWhenItsSenderWasReady) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  EXPECT_EQ(sent_without_content(world, true).ready, 2.5);
}

TEST(Nccl, ATurnThatNeverComesEndsWithTheAbort) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  const std::vector<DeviceId> participants = {0, 1};
  const std::vector<std::string> errors = errors_of(world, [&](i32 rank, Transport& transport) {
    if (rank == 1) fail<DeviceError>("rank 1", "planted fault");
    transport.exchange({0, 3, "combine.F", rank, participants, 2, 0, kNumbers}, two_numbers());
  });
  EXPECT_TRUE(has(errors[1], "planted fault"));
  EXPECT_FALSE(errors[0].empty());
}

/// One rank of two whose peer never comes; its launches pass `on_launch` first. Returns the error of an
/// exchange that `abort` meets from another thread.
std::string aborted_error(NcclWorld& world, std::function<void()> on_launch,
                          const std::function<void(Transport&)>& abort) {
  std::string error;
  std::thread other([&] {
    const RankThread processes(world, 1);
    make_nccl_transport(processes, std::make_unique<FakeNccl>(world, 1), on_cpu(2));
  });
  const RankThread processes(world, 0);
  auto nccl = std::make_unique<FakeNccl>(world, 0);
  nccl->on_launch = std::move(on_launch);
  const std::unique_ptr<Transport> transport = make_nccl_transport(processes, std::move(nccl), on_cpu(2));
  other.join();
  const std::vector<DeviceId> both = {0, 1};
  std::thread lane([&] {
    error = error_of<TransportError>([&] {
      transport->begin_step();
      transport->exchange(
          {.op = 3, .name = "combine.F", .self = 0, .participants = both, .queue = 2, .expected = kNumbers},
          two_numbers());
    });
  });
  abort(*transport);
  lane.join();
  return error;
}

TEST(Nccl, AnAbortWhileALaneLaunchesWaitsBeforeItFreesWhatTheLaneUses) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  Gate launching, aborting;
  const std::string error = aborted_error(
      world,
      [&] {  // between the lane's turn and its first send
        launching.open();
        aborting.wait();
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
      },
      [&](Transport& transport) {
        launching.wait();
        aborting.open();
        transport.abort("a lane failed");
      });
  EXPECT_NE(error, "no error");
  EXPECT_EQ(world.launches[0].size(), 1U);
}

TEST(Nccl, ALaneDoesNotLaunchAfterAnAbort) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(2);
  const RankThread processes(world, 0);
  std::thread other([&] {
    const RankThread second(world, 1);
    make_nccl_transport(second, std::make_unique<FakeNccl>(world, 1), on_cpu(2));
  });
  auto nccl = std::make_unique<FakeNccl>(world, 0);
  nccl->on_launch = [] { ADD_FAILURE() << "launched"; };
  const std::unique_ptr<Transport> transport = make_nccl_transport(processes, std::move(nccl), on_cpu(2));
  other.join();
  transport->abort("the watchdog");
  const std::vector<DeviceId> both = {0, 1};
  EXPECT_EQ(error_of<TransportError>([&] {
              transport->exchange(
                  {.name = "norm", .self = 0, .participants = both, .queue = 4, .expected = kNumbers},
                  two_numbers());
            }),
            "[device 0 norm] was aborted: the watchdog");
}

TEST(Nccl, DevicesWithoutAProcessDoNotCount) {
  const Deadline deadline(std::chrono::seconds(60));
  NcclWorld world(3);
  std::vector<std::thread> threads;
  for (i32 rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      const RankThread processes(world, rank);
      NcclOptions options = on_cpu(4);
      options.rank_of = {0, kNoRank, 1, 2};
      const std::unique_ptr<Transport> transport =
          make_nccl_transport(processes, std::make_unique<FakeNccl>(world, rank), options);
      const std::vector<DeviceId> participants = {0, 2, 3};
      std::vector<Message> out(3);
      for (Message& message : out) message.numbers = {rank};
      const std::vector<MessageShape> expected(3, {.numbers = 1, .values = 0, .tensors = {}});
      const std::vector<Message> in = transport->exchange({.name = "norm",
                                                           .self = participants[idx(rank)],
                                                           .participants = participants,
                                                           .queue = 4,
                                                           .expected = expected},
                                                          std::move(out));
      for (i64 from = 0; from < 3; ++from) EXPECT_EQ(in[idx(from)].numbers, std::vector<i64>{from});
      processes.gather("done");
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Nccl, SeveralDevicesOfOneProcessAreRefused) {
  NcclWorld world(1);
  const RankThread processes(world, 0);
  try {
    make_nccl_transport(processes, std::make_unique<FakeNccl>(world, 0),
                        {.rank_of = {0, kNoRank, 0}, .queues = {1}, .device = c10::DeviceType::CPU});
    FAIL();
  } catch (const ConfigError& error) {
    EXPECT_TRUE(has(error.what(), "as many processes as the plan has devices (2)"));
  }
}

}  // namespace
}  // namespace hetermoe::testing
