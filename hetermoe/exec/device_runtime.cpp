#include "hetermoe/exec/device_runtime.h"

#include "hetermoe/exec/ops/op_functions.h"

namespace hetermoe {

void DeviceRuntime::compute(const Op& op) { run_compute(context_, op); }

std::vector<Message> DeviceRuntime::pack(const Op& op, std::span<const DeviceId> participants) {
  std::vector<Message> out(participants.size());
  transfer_op_of(op.kind).pack(context_, op, participants, out);
  return out;
}

void DeviceRuntime::check(const Op& op, std::span<const DeviceId> participants,
                          const std::vector<Message>& in) {
  const TransferOp& transfer = transfer_op_of(op.kind);
  const Message& own = in[position(participants, device())];
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const DeviceId peer = participants[i];
    if (peer == device()) continue;
    check_shape(context_.name_of_peer(peer), in[i], transfer.expected(context_, op, peer, in[i], own));
    if (transfer.check_content) transfer.check_content(context_, op, peer, in[i]);
  }
}

void DeviceRuntime::unpack(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& in) {
  transfer_op_of(op.kind).unpack(context_, op, participants, in);
}

const ExchangeLoad* DeviceRuntime::load_of(const Op& op) {
  return needs_load(op.kind) ? &slots().chunk(op.layer, op.microbatch, op.chunk).load : nullptr;
}

}  // namespace hetermoe
