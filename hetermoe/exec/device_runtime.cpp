#include "hetermoe/exec/device_runtime.h"

#include "hetermoe/exec/ops/op_functions.h"

namespace hetermoe {

void DeviceRuntime::compute(const Op& op) { run_compute(context_, op); }

std::vector<Message> DeviceRuntime::pack(const TransferOp& transfer, const Op& op,
                                         std::span<const DeviceId> participants) {
  std::vector<Message> out(participants.size());
  transfer.pack(context_, op, participants, out);
  return out;
}

std::vector<MessageShape> DeviceRuntime::expected(const TransferOp& transfer, const Op& op,
                                                  std::span<const DeviceId> participants,
                                                  const Message& own) {
  std::vector<MessageShape> all;
  for (const DeviceId peer : participants) all.push_back(transfer.expected(context_, op, peer, own));
  return all;
}

void DeviceRuntime::check(const TransferOp& transfer, const Op& op, std::span<const DeviceId> participants,
                          const std::vector<MessageShape>& expected, const std::vector<Message>& in) {
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const DeviceId peer = participants[i];
    if (peer == device()) continue;
    check_shape(context_.name_of_peer(peer), in[i], expected[i]);
    if (transfer.check_content) transfer.check_content(context_, op, peer, in[i]);
  }
}

void DeviceRuntime::unpack(const TransferOp& transfer, const Op& op, std::span<const DeviceId> participants,
                           std::vector<Message>& in) {
  transfer.unpack(context_, op, participants, in);
}

const ExchangeLoad* DeviceRuntime::load_of(const Op& op) {
  return needs_load(op.kind) ? &slots().chunk(op.layer, op.microbatch, op.chunk).load : nullptr;
}

}  // namespace hetermoe
