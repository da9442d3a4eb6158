#include "hetermoe/base/index.h"
#include "hetermoe/exec/ops/op_functions.h"

// reduce: gradients of a state among the devices that hold it, as reduce-scatter and all-gather. Each device
// adds up its part of every gradient and tells the others the sum.
namespace hetermoe {
namespace {

/// Part `index` of `parts` of a tensor, one dimension.
at::Tensor part_of(const at::Tensor& tensor, std::size_t index, std::size_t parts) {
  const i64 all = tensor.numel(), of = static_cast<i64>(parts), i = static_cast<i64>(index);
  const i64 begin = all * i / of;
  return tensor.view(-1).narrow(0, begin, all * (i + 1) / of - begin);
}

const std::vector<at::Tensor>& grads_of(OpContext& d, const Op& op) {
  return d.state.tensors(op.state).grads;
}

/// To each participant its parts. Copies, for what comes back is written over the gradients.
void pack_parts(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  for (std::size_t i = 0; i < participants.size(); ++i) {
    for (const at::Tensor& grad : grads_of(d, op))
      out[i].tensors.push_back(part_of(grad, i, participants.size()).clone());
  }
}

/// Adds in device order, as one device would do it.
void add_parts(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  const std::size_t self = position(participants, d.device());
  for (std::size_t t = 0; t < in[0].tensors.size(); ++t) {
    at::Tensor sum = part_of(grads_of(d, op)[t], self, participants.size());
    sum.copy_(in[0].tensors[t]);
    for (std::size_t i = 1; i < in.size(); ++i) sum.add_(d.received(in[i].tensors[t]));
  }
}

void pack_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  const std::size_t self = position(participants, d.device());
  std::vector<at::Tensor> sums;
  for (const at::Tensor& grad : grads_of(d, op))
    sums.push_back(part_of(grad, self, participants.size()).clone());
  for (Message& message : out) message.tensors = sums;
}

void keep_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (participants[i] == d.device()) continue;
    for (std::size_t t = 0; t < in[i].tensors.size(); ++t)
      part_of(grads_of(d, op)[t], i, participants.size()).copy_(in[i].tensors[t]);
  }
}

/// The part of every gradient that belongs to `owner`, in the dtype of `sender`.
MessageShape shape_of_parts(OpContext& d, const Op& op, DeviceId sender, DeviceId owner) {
  const std::vector<DeviceId>& holders = d.schedule.states[idx(op.state)].devices;
  const at::ScalarType dtype = scalar_type(grad_dtype_of(d.p.plan(), sender));
  MessageShape shape;
  for (const at::Tensor& grad : grads_of(d, op))
    shape.tensors.push_back({dtype, {part_of(grad, position(holders, owner), holders.size()).numel()}});
  return shape;
}

MessageShape expected_parts(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of_parts(d, op, peer, d.device());
}

MessageShape expected_sums(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of_parts(d, op, peer, peer);
}

}  // namespace

template <>
TransferOp transfer_op<TransferKind::kReduce>() {
  static const TransferOp gather = {.pack = pack_sums, .expected = expected_sums, .unpack = keep_sums};
  return {.pack = pack_parts, .expected = expected_parts, .unpack = add_parts, .next = &gather};
}

}  // namespace hetermoe
