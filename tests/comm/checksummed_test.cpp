#include <ATen/EmptyTensor.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <torch/library.h>

#include <cstring>
#include <future>
#include <mutex>

#include "hetermoe/base/error.h"
#include "hetermoe/comm/transport.h"
#include "tests/support/error_of.h"

namespace hetermoe {
namespace {

/// Passes messages on after a change.
class Altering : public TransportDecorator {
 public:
  explicit Altering(std::function<void(const ExchangeCall&, std::vector<Message>&)> alter)
      : TransportDecorator(make_in_process_transport(2)), alter_(std::move(alter)) {}
  std::string name() const override { return "altering"; }
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    alter_(call, out);
    return inner().exchange(call, std::move(out));
  }

 private:
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

TEST(Checksummed, WhatIsExpectedCountsTheSum) {
  std::vector<std::size_t> numbers;
  const std::unique_ptr<Transport> transport =
      make_checksummed_transport(std::make_unique<Altering>([&](const ExchangeCall& call, auto&) {
        for (const MessageShape& shape : call.expected) numbers.push_back(shape.numbers);
      }));
  const std::vector<DeviceId> self = {0};
  const std::vector<MessageShape> expected = {{.numbers = 2, .values = 1, .tensors = {}}};
  transport->exchange({.name = "norm", .self = 0, .participants = self, .expected = expected}, {sample()});
  EXPECT_EQ(numbers, std::vector<std::size_t>{3});
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

// ---- tensors whose memory the host cannot read ----

/// Memory of an accelerator that is none: the host may look at it only while a copy is made.
struct Hidden {
  void* data;
  std::size_t bytes;
  void protect(int rights) const { HM_CHECK(::mprotect(data, bytes, rights) == 0, "no mprotect"); }
};

struct HiddenAllocator final : c10::Allocator {
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* const hidden = new Hidden{nullptr, std::max<std::size_t>(bytes, 1)};
    hidden->data = ::mmap(nullptr, hidden->bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return {hidden->data, hidden, &free_hidden, c10::Device(c10::DeviceType::PrivateUse1, 0)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return nullptr; }
  void copy_data(void*, const void*, std::size_t) const override { HM_CHECK(false, "nobody copies so"); }
  static void free_hidden(void* context) {
    const std::unique_ptr<Hidden> hidden(static_cast<Hidden*>(context));
    ::munmap(hidden->data, hidden->bytes);
  }
};

at::Tensor empty_hidden(c10::IntArrayRef size, c10::IntArrayRef stride, std::optional<at::ScalarType> dtype,
                        std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  static HiddenAllocator allocator;
  constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);
  return at::detail::empty_strided_generic(size, stride, &allocator, kKeys, dtype.value_or(at::kFloat));
}

const Hidden* hidden_of(const at::Tensor& tensor) {
  return tensor.device().is_privateuseone()
             ? static_cast<const Hidden*>(tensor.storage().data_ptr().get_context())
             : nullptr;
}

at::Tensor copy_hidden(const at::Tensor& from, const at::Tensor& to, bool) {
  static std::mutex one_at_a_time;  // two threads copy the same tensor, and the first to end hides it again
  const std::lock_guard lock(one_at_a_time);
  for (const at::Tensor& tensor : {from, to}) {
    if (hidden_of(tensor)) hidden_of(tensor)->protect(PROT_READ | PROT_WRITE);
  }
  std::memcpy(to.mutable_data_ptr(), from.const_data_ptr(), from.nbytes());
  for (const at::Tensor& tensor : {from, to}) {
    if (hidden_of(tensor)) hidden_of(tensor)->protect(PROT_NONE);
  }
  return to;
}

C10_REGISTER_GUARD_IMPL(PrivateUse1, c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::PrivateUse1>)

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty_strided", &empty_hidden);
  library.impl("_copy_from", &copy_hidden);
}

/// The error of device 1, which gets such a tensor; `flip` alters it on the way.
std::string hidden_error(bool flip) {
  const at::Device device(c10::DeviceType::PrivateUse1, 0);
  Message told;
  told.tensors = {at::arange(5000, at::kFloat).to(device)};
  Message other;
  other.tensors = {at::arange(5000, at::kFloat).mul_(2).to(device)};
  const std::unique_ptr<Transport> transport =
      make_checksummed_transport(std::make_unique<Altering>([&](const ExchangeCall& call, auto& out) {
        if (flip && call.self == 0) out[1].tensors = other.tensors;
      }));
  const std::vector<DeviceId> both = {0, 1};
  const auto exchange = [&](DeviceId self) {
    return error_of<TransportError>([&] {
      const std::vector<Message> in = transport->exchange(
          {.step = 4, .op = 7, .name = "combine.F", .self = self, .participants = both}, {told, told});
      EXPECT_TRUE(in[0].tensors[0].device().is_privateuseone());
      EXPECT_TRUE(at::equal(in[self == 0 ? 1 : 0].tensors[0].to(at::kCPU), at::arange(5000, at::kFloat)));
    });
  };
  std::future<std::string> zero = std::async(std::launch::async, exchange, 0);
  const std::string error = exchange(1);
  EXPECT_EQ(zero.get(), "no error");
  return error;
}

TEST(Checksummed, ATensorOnAnotherDeviceIsSummedOverACopyOnTheHost) {
  EXPECT_EQ(hidden_error(false), "no error");
  const std::string error = hidden_error(true);
  EXPECT_NE(error.find("[device 1 combine.F from device 0] a message is corrupted"), std::string::npos)
      << error;
}

}  // namespace
}  // namespace hetermoe
