#include "hetermoe/comm/sent_bytes.h"

#include <gtest/gtest.h>

#include <future>

namespace hetermoe {
namespace {

/// Devices 0 and 1 on one node, 2 on another.
Cluster three_devices() {
  Cluster cluster;
  cluster.nodes.resize(2);
  cluster.devices = {{0, 0, 1}, {0, 0, 1}, {0, 1, 1}};
  return cluster;
}

TEST(SentBytes, AreThoseOfTensorsToOthersByStep) {
  const Cluster cluster = three_devices();
  SentBytes sent(cluster);
  const std::unique_ptr<Transport> transport = make_counted_transport(make_in_process_transport(3), sent);
  EXPECT_EQ(transport->name(), "in-process");
  const std::vector<DeviceId> all = {0, 1, 2};
  const auto exchange = [&](DeviceId self, i64 step) {
    // (1 + self) * 10 numbers of fp64 to each, the own message among them.
    Message message;
    message.numbers = {self};
    message.tensors = {at::full({(1 + self) * 10}, self, at::kDouble)};
    const std::vector<Message> in =
        transport->exchange({.step = step, .op = 3, .name = "dispatch.F", .self = self, .participants = all},
                            {message, message, message});
    for (DeviceId from = 0; from < 3; ++from)
      EXPECT_EQ(in[static_cast<std::size_t>(from)].numbers, (std::vector<i64>{from}));
  };
  for (const i64 step : {4, 5, 5}) {
    std::future<void> zero = std::async(std::launch::async, exchange, 0, step);
    std::future<void> one = std::async(std::launch::async, exchange, 1, step);
    exchange(2, step);
    zero.get(), one.get();
  }
  // Each sends to two others: 80, 160 and 240 bytes. Device 2 is alone on its node.
  const SentBytes::OfStep four = sent.take(4), five = sent.take(5);
  EXPECT_EQ(four.all, 2 * (80 + 160 + 240));
  EXPECT_EQ(four.between_nodes, 80 + 160 + 2 * 240);
  EXPECT_EQ(five.all, 2 * four.all);
  EXPECT_EQ(sent.take(4).all, 0);  // asked for once
  EXPECT_EQ(sent.take(6).between_nodes, 0);
}

}  // namespace
}  // namespace hetermoe
