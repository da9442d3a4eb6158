#include "hetermoe/base/index.h"
#include "hetermoe/exec/ops/op_functions.h"

// Gradients of a state among the devices that hold it. reduce_scatter: each device adds up its part of every
// gradient. reduce: then it tells the others the sums. all_gather: it tells them its part of the updated
// weights.
namespace hetermoe {
namespace {

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

/// To all the same: copies of this device's parts.
void pack_own_part(OpContext& d, const std::vector<at::Tensor>& tensors, Devices participants,
                   std::vector<Message>& out) {
  std::vector<at::Tensor> own = parts_of(tensors, position(participants, d.device()), participants.size());
  for (at::Tensor& part : own) part = part.clone();
  for (Message& message : out) message.tensors = own;
}

void keep_others_parts(OpContext& d, const std::vector<at::Tensor>& tensors, Devices participants,
                       std::vector<Message>& in) {
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (participants[i] == d.device()) continue;
    for (std::size_t t = 0; t < in[i].tensors.size(); ++t)
      part_of(tensors[t], i, participants.size()).copy_(in[i].tensors[t]);
  }
}

void pack_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  pack_own_part(d, grads_of(d, op), participants, out);
}

void keep_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  keep_others_parts(d, grads_of(d, op), participants, in);
}

void pack_weights(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  pack_own_part(d, d.state.tensors(op.state).values, participants, out);
}

void keep_weights(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  keep_others_parts(d, d.state.tensors(op.state).values, participants, in);
}

/// The part of every tensor of the state that belongs to `owner`.
MessageShape shape_of_parts(OpContext& d, const Op& op, DeviceId owner, at::ScalarType dtype) {
  const std::vector<PlaceId>& holders = d.schedule.states[idx(op.state)].reducers();
  MessageShape shape;
  for (const at::Tensor& grad : grads_of(d, op))
    shape.tensors.push_back({dtype, part_of(grad, position(holders, owner), holders.size()).sizes().vec()});
  return shape;
}

at::ScalarType grad_type(const OpContext& d, PlaceId sender) {
  return scalar_type(grad_dtype_of(d.p.plan(), d.p.first_device(sender)));
}

MessageShape expected_parts(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of_parts(d, op, d.device(), grad_type(d, peer));
}

MessageShape expected_sums(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of_parts(d, op, peer, grad_type(d, peer));
}

MessageShape expected_weights(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of_parts(d, op, peer, scalar_type(d.p.plan().dtype[idx(peer)]));
}

}  // namespace

template <>
TransferOp transfer_op<TransferKind::kReduceScatter>() {
  return {.pack = pack_parts, .expected = expected_parts, .unpack = add_parts};
}

template <>
TransferOp transfer_op<TransferKind::kReduce>() {
  static const TransferOp sums = {.pack = pack_sums, .expected = expected_sums, .unpack = keep_sums};
  TransferOp reduce = transfer_op<TransferKind::kReduceScatter>();
  reduce.next = &sums;
  return reduce;
}

template <>
TransferOp transfer_op<TransferKind::kAllGather>() {
  return {.pack = pack_weights, .expected = expected_weights, .unpack = keep_weights};
}

}  // namespace hetermoe
