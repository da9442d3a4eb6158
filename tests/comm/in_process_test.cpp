#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/transport.h"
#include "tests/support/error_of.h"
#include "tests/support/faults.h"

namespace hetermoe {
namespace {

using std::chrono::milliseconds;

/// What device `from` tells device `to` in op `op`: every value says who sent it to whom.
Message message_of(i64 step, OpId op, DeviceId from, DeviceId to) {
  Message message;
  message.numbers = {step, op, from, to};
  message.values = {0.5 * from};
  message.ready = from + 0.25;
  const i64 rows = (from * 7 + to * 3 + op) % 4;  // some have none
  message.tensors.push_back(at::full({rows, 3}, 1000 * op + 10 * from + to, at::kLong));
  return message;
}

void expect_same(const Message& got, const Message& expected) {
  EXPECT_EQ(got.numbers, expected.numbers);
  EXPECT_EQ(got.values, expected.values);
  EXPECT_EQ(got.ready, expected.ready);
  ASSERT_EQ(got.tensors.size(), expected.tensors.size());
  EXPECT_TRUE(at::equal(got.tensors[0], expected.tensors[0]));
}

void exchange_all(Transport& transport, i64 step, OpId op, DeviceId self,
                  const std::vector<DeviceId>& participants) {
  std::vector<Message> out;
  for (const DeviceId to : participants) out.push_back(message_of(step, op, self, to));
  const std::vector<Message> in = transport.exchange({step, op, "test", self, participants}, std::move(out));
  ASSERT_EQ(in.size(), participants.size());
  for (std::size_t i = 0; i < in.size(); ++i) expect_same(in[i], message_of(step, op, participants[i], self));
}

TEST(InProcess, EveryMessageArrivesUnchangedWhateverTheTiming) {
  constexpr DeviceId kDevices = 5;
  const std::unique_ptr<Transport> transport = make_in_process_transport(kDevices);
  EXPECT_EQ(transport->name(), "in-process");
  std::vector<std::thread> threads;
  for (DeviceId device = 0; device < kDevices; ++device) {
    threads.emplace_back([&, device] {
      for (i64 step = 0; step < 20; ++step) {
        for (OpId op = 0; op < 10; ++op) {
          std::vector<DeviceId>
              participants;  // op 0: all; others leave one out; a single device talks to itself
          for (DeviceId d = 0; d < kDevices; ++d) {
            if (op == 0 || d != op % kDevices) participants.push_back(d);
          }
          if (op == 7) participants = {2};
          if (std::find(participants.begin(), participants.end(), device) == participants.end()) continue;
          if ((device + op + step) % 9 == 0) std::this_thread::sleep_for(milliseconds(1));
          exchange_all(*transport, step, op, device, participants);
        }
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

/// Two lanes of a device may meet their peers in different orders.
TEST(InProcess, OpsOfDifferentLanesDoNotMixUp) {
  const std::unique_ptr<Transport> transport = make_in_process_transport(2);
  std::vector<std::thread> threads;
  for (DeviceId device = 0; device < 2; ++device) {
    for (OpId op = 0; op < 4; ++op) {
      threads.emplace_back([&, device, op] {
        std::this_thread::sleep_for(milliseconds(device == 0 ? 3 * op : 3 * (4 - op)));
        exchange_all(*transport, 0, op, device, {0, 1});
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(InProcess, OwnMessageComesBackAsTheSameTensor) {
  const std::unique_ptr<Transport> transport = make_in_process_transport(1);
  const at::Tensor tensor = at::ones({3});
  std::vector<Message> out(1);
  out[0].tensors.push_back(tensor);
  const std::vector<DeviceId> self = {0};
  const std::vector<Message> in = transport->exchange({0, 0, "own", 0, self}, std::move(out));
  EXPECT_TRUE(in[0].tensors[0].is_same(tensor));
}

TEST(InProcess, AbortWakesEveryBlockedPeerWithTheFirstReason) {
  const std::unique_ptr<Transport> transport = make_in_process_transport(4);
  const std::vector<DeviceId> all = {0, 1, 2, 3};
  std::vector<std::future<std::string>> blocked;
  for (DeviceId device = 0; device < 3; ++device) {  // device 3 never comes
    blocked.push_back(std::async(std::launch::async, [&, device] {
      return error_of<TransportError>([&] {
        transport->exchange({0, 5, "dispatch.F l1 m0", device, all}, std::vector<Message>(4));
      });
    }));
  }
  for (const std::future<std::string>& future : blocked)
    EXPECT_EQ(future.wait_for(milliseconds(20)), std::future_status::timeout);
  transport->abort("device 3 lost power");
  transport->abort("something later");
  for (DeviceId device = 0; device < 3; ++device) {
    std::future<std::string>& future = blocked[static_cast<std::size_t>(device)];
    ASSERT_EQ(future.wait_for(std::chrono::seconds(20)), std::future_status::ready);
    const std::string text = future.get();
    EXPECT_NE(text.find(fmt::format("[device {}]", device)), std::string::npos) << text;
    EXPECT_NE(text.find("dispatch.F l1 m0"), std::string::npos) << text;
    EXPECT_NE(text.find("device 3 lost power"), std::string::npos) << text;
  }
  // Later calls fail at once.
  EXPECT_THROW(transport->exchange({0, 6, "later", 0, all}, std::vector<Message>(4)), TransportError);
}

TEST(InProcess, SendingTwiceIsABug) {
  const testing::Deadline deadline(std::chrono::seconds(60));
  const std::unique_ptr<Transport> transport = make_in_process_transport(2);
  const std::vector<DeviceId> both = {0, 1};
  std::future<void> first = std::async(std::launch::async, [&] {
    EXPECT_THROW(transport->exchange({0, 1, "op", 0, both}, std::vector<Message>(2)), TransportError);
  });
  while (transport->awaited().empty()) std::this_thread::yield();  // who waits for an answer has sent
  EXPECT_THROW(transport->exchange({0, 1, "op", 0, both}, std::vector<Message>(2)), InternalError);
  transport->abort("test");
  first.get();
}

}  // namespace
}  // namespace hetermoe
