#include <gtest/gtest.h>

#include <future>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/transport.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

/// Passes messages on after a change.
class Altering : public Transport {
 public:
  explicit Altering(std::function<void(const ExchangeCall&, std::vector<Message>&)> alter)
      : inner_(make_in_process_transport(2)), alter_(std::move(alter)) {}
  std::string name() const override { return "altering"; }
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    alter_(call, out);
    return inner_->exchange(call, std::move(out));
  }
  void abort(const std::string& reason) override { inner_->abort(reason); }

 private:
  std::unique_ptr<Transport> inner_;
  std::function<void(const ExchangeCall&, std::vector<Message>&)> alter_;
};

Message sample() {
  Message message;
  message.numbers = {1, 2};
  message.values = {0.5};
  message.tensors = {at::arange(3), at::ones({2, 2}).t()};
  message.ready = 1;
  return message;
}

/// The error of device 1 when both tell each other sample().
std::string altered_error(std::function<void(const ExchangeCall&, std::vector<Message>&)> alter) {
  const std::unique_ptr<Transport> transport =
      make_checksummed_transport(std::make_unique<Altering>(std::move(alter)));
  const std::vector<DeviceId> both = {0, 1};
  const auto exchange = [&](DeviceId self) {
    return error_of<TransportError>([&] {
      const std::vector<Message> in =
          transport->exchange({4, 7, "dispatch.F l0 m0", self, both, 0}, {sample(), sample()});
      EXPECT_EQ(in[0].numbers, sample().numbers);  // the sum is taken off again
      EXPECT_TRUE(at::equal(in[0].tensors[1], sample().tensors[1]));
    });
  };
  std::future<std::string> zero = std::async(std::launch::async, exchange, 0);
  const std::string error = exchange(1);
  EXPECT_EQ(zero.get(), "no error");
  return error;
}

TEST(Checksummed, WhatIsUnchangedArrivesAsItWasSent) {
  EXPECT_EQ(altered_error([](auto&, auto&) {}), "no error");
}

TEST(Checksummed, EveryPartOfAMessageIsCovered) {
  const std::vector<std::function<void(Message&)>> changes = {
      [](Message& m) { m.ready = 2; },
      [](Message& m) { m.numbers[0] = 9; },
      [](Message& m) { m.numbers.clear(); },
      [](Message& m) { m.values[0] = 0.25; },
      [](Message& m) { m.tensors.pop_back(); },
      [](Message& m) { m.tensors[0] = at::zeros({3}, at::kLong); },
      [](Message& m) {
        m.tensors[0] = m.tensors[0].view({3, 1});
      },
      [](Message& m) { m.tensors[0] = m.tensors[0].view(at::kDouble); },
      [](Message& m) { std::swap(m.tensors[0], m.tensors[1]); }};
  for (std::size_t c = 0; c < changes.size(); ++c) {
    const std::string error = altered_error([&](const ExchangeCall& call, std::vector<Message>& out) {
      if (call.self == 0) changes[c](out[1]);
    });
    EXPECT_NE(error.find("[device 1 dispatch.F l0 m0 from device 0] a message is c"), std::string::npos)
        << c << ": " << error;
  }
}

TEST(Checksummed, AMessageOfAnotherOpIsFound) {
  Message other;
  const std::string error = altered_error([&](const ExchangeCall& call, std::vector<Message>& out) {
    if (call.self == 0) out[1].numbers.back() ^= 1;  // what the sum of another op would look like
  });
  EXPECT_NE(error.find("is corrupted: got checksum"), std::string::npos) << error;
}

}  // namespace
}  // namespace hetermoe
