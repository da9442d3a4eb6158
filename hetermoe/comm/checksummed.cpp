#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/comm/transport.h"

namespace hetermoe {
namespace {

template <class T>
u64 sum_of(const std::vector<T>& values, u64 state) {
  const u64 size = values.size();
  return checksum(values.data(), values.size() * sizeof(T), checksum(&size, sizeof size, state));
}

/// Over a copy on the host, where the tensor is elsewhere: its memory is not to be read from here.
u64 sum_of(const at::Tensor& tensor, u64 state) {
  const at::Tensor whole = tensor.to(at::kCPU).contiguous();
  const i64 dtype = static_cast<i64>(whole.scalar_type());
  state = sum_of(whole.sizes().vec(), checksum(&dtype, sizeof dtype, state));
  return checksum(whole.const_data_ptr(), whole.nbytes(), state);
}

/// Of what is told, and of who tells whom in which op: a message in the place of another is found as well.
i64 sum_of(const ExchangeCall& call, DeviceId from, DeviceId to, const Message& message) {
  u64 state = sum_of(std::vector<i64>{call.step, call.op, call.round, from, to}, checksum(nullptr, 0));
  state = checksum(&message.ready, sizeof message.ready, state);
  state = sum_of(message.values, sum_of(message.numbers, state));
  for (const at::Tensor& tensor : message.tensors) state = sum_of(tensor, state);
  return static_cast<i64>(state);
}

class Checksummed : public TransportDecorator {
 public:
  using TransportDecorator::TransportDecorator;

  std::string name() const override { return TransportDecorator::name() + " with checksums"; }

  /// The sum travels as the last of the numbers.
  std::vector<Message> exchange(const ExchangeCall& call, std::vector<Message> out) override {
    for (std::size_t i = 0; i < out.size(); ++i) {
      const DeviceId peer = call.participants[i];
      if (peer != call.self) out[i].numbers.push_back(sum_of(call, call.self, peer, out[i]));
    }
    std::vector<MessageShape> expected(call.expected.begin(), call.expected.end());
    for (MessageShape& shape : expected) ++shape.numbers;
    ExchangeCall inner_call = call;
    inner_call.expected = expected;
    std::vector<Message> in = inner().exchange(inner_call, std::move(out));
    for (std::size_t i = 0; i < in.size(); ++i) {
      if (call.participants[i] != call.self) check_sum(call, call.participants[i], in[i]);
    }
    return in;
  }

 private:
  static void check_sum(const ExchangeCall& call, DeviceId from, Message& message) {
    const std::string where = fmt::format("device {} {} from device {}", call.self, call.name, from);
    if (message.numbers.empty())
      fail<TransportError>(where, "a message is cut: got no checksum, expected one");
    const i64 expected = message.numbers.back();
    message.numbers.pop_back();
    const i64 got = sum_of(call, from, call.self, message);
    if (got == expected) return;
    fail<TransportError>(where, "a message is corrupted: got checksum {:016x}, expected {:016x}",
                         static_cast<u64>(got), static_cast<u64>(expected));
  }
};

}  // namespace

std::unique_ptr<Transport> make_checksummed_transport(std::unique_ptr<Transport> inner) {
  return std::make_unique<Checksummed>(std::move(inner));
}

}  // namespace hetermoe
