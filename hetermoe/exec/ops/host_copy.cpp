#include "hetermoe/base/index.h"
#include "hetermoe/exec/ops/op_functions.h"

// fetch: parameters of a state go from the host to a device. store: gradients go back. Both sides are in one
// process, where a message is its sender's memory: the second exchange tells the sender that it was copied.
namespace hetermoe {
namespace {

MessageShape nothing(OpContext&, const Op&, DeviceId, const Message&) { return {}; }

const TransferOp& copied() {
  static const TransferOp ack = {
      .pack = [](OpContext&, const Op&, Devices, std::vector<Message>&) {},
      .expected = nothing,
      .unpack = [](OpContext&, const Op&, Devices, std::vector<Message>&) {},
  };
  return ack;
}

bool visits(const OpContext& d, const Op& op) { return d.schedule.states[idx(op.state)].visits(); }

std::vector<at::Tensor> parameters_of(OpContext& d, const Op& op) {
  const StateTensors& tensors = d.state.tensors(op.state);
  const bool is_old = d.p.lags(op.state) && !tensors.published.empty();
  std::vector<at::Tensor> all = is_old ? tensors.published : tensors.values;
  const at::Tensor buffer = d.state.store().buffer_of(op.state);
  if (buffer.defined()) all.push_back(buffer);
  return all;
}

MessageShape shape_of(const std::vector<at::Tensor>& tensors) {
  MessageShape shape;
  for (const at::Tensor& tensor : tensors)
    shape.tensors.push_back({tensor.scalar_type(), tensor.sizes().vec()});
  return shape;
}

/// To the other participant; nothing to this one.
void send(OpContext& d, Devices participants, std::vector<Message>& out, std::vector<at::Tensor> tensors) {
  const std::size_t self = position(participants, d.device());
  out[1 - self].tensors = std::move(tensors);
}

const Message& received(const OpContext& d, Devices participants, const std::vector<Message>& in) {
  return in[1 - position(participants, d.device())];
}

void pack_fetch(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (d.device() != op.device) send(d, participants, out, parameters_of(d, op));
}

MessageShape expected_fetch(OpContext& d, const Op& op, DeviceId, const Message&) {
  return d.device() == op.device ? shape_of(parameters_of(d, op)) : MessageShape{};
}

void unpack_fetch(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (d.device() != op.device) return;
  const std::vector<at::Tensor>& from = received(d, participants, in).tensors;
  if (visits(d, op)) return d.state.store().admit(op.state, from);
  const std::vector<at::Tensor> to = parameters_of(d, op);
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i]);
}

void pack_store(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (d.device() == op.device) send(d, participants, out, d.state.tensors(op.state).grads);
}

MessageShape expected_store(OpContext& d, const Op& op, DeviceId, const Message&) {
  return d.device() == op.device ? MessageShape{} : shape_of(d.state.tensors(op.state).grads);
}

void unpack_store(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (d.device() == op.device) return;
  const std::vector<at::Tensor>& from = received(d, participants, in).tensors;
  const std::vector<at::Tensor>& sum = d.state.tensors(op.state).grads;
  for (std::size_t i = 0; i < from.size(); ++i) {
    // Of each visit a part; else the whole sum, which keeps its bits.
    if (visits(d, op))
      sum[i].add_(d.received(from[i]));
    else
      sum[i].copy_(from[i]);
  }
}

}  // namespace

template <>
TransferOp transfer_op<TransferKind::kFetch>() {
  return {.pack = pack_fetch, .expected = expected_fetch, .unpack = unpack_fetch, .next = &copied()};
}

template <>
TransferOp transfer_op<TransferKind::kStore>() {
  return {.pack = pack_store, .expected = expected_store, .unpack = unpack_store, .next = &copied()};
}

}  // namespace hetermoe
