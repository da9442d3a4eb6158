#include "hetermoe/base/index.h"
#include "hetermoe/exec/ops/op_functions.h"

// Gradients of a state among the devices that hold it. reduce_scatter: each device adds up its part of every
// gradient. reduce: then it tells the others the sums. all_gather: it tells them its part of the updated
// weights. Gathered weights (State::gathered) are here in parts: all_gather makes them whole for a visit, and
// reduce_scatter adds what a visit leaves to the own part of the gradients.
namespace hetermoe {
namespace {

const std::vector<at::Tensor>& grads_of(OpContext& d, const Op& op) {
  return d.state.tensors(op.state).grads;
}

bool gathered(const OpContext& d, const Op& op) { return d.schedule.states[idx(op.state)].gathered(); }

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

void tell_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
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

/// What the visit leaves, or zeros. The memory is given up to the messages.
void pack_left(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  const State& state = d.schedule.states[idx(op.state)];
  d.state.store().open_grads(state.part, state.part == UnitPart::kHead ? d.p.num_layers() : state.layer);
  for (std::size_t i = 0; i < participants.size(); ++i)
    out[i].tensors = parts_of(grads_of(d, op), i, participants.size());
}

/// In device order, as if this were the only visit; then to what earlier visits left.
void add_left(OpContext& d, const Op& op, Devices, std::vector<Message>& in) {
  const std::vector<at::Tensor>& sums = d.state.tensors(op.state).taken;
  for (std::size_t t = 0; t < sums.size(); ++t) {
    at::Tensor sum = d.received(in[0].tensors[t]).clone();
    for (std::size_t i = 1; i < in.size(); ++i) sum.add_(d.received(in[i].tensors[t]));
    sums[t].add_(sum);
  }
}

/// The parts are not written before all have them.
void pack_kept(OpContext& d, const Op& op, Devices, std::vector<Message>& out) {
  for (Message& message : out) message.tensors = d.state.tensors(op.state).kept;
}

void join_parts(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  d.state.store().make_room(op.state);
  const std::vector<at::Tensor>& values = d.state.tensors(op.state).values;
  for (std::size_t i = 0; i < in.size(); ++i) {
    for (std::size_t t = 0; t < values.size(); ++t)
      part_of(values[t], i, participants.size()).copy_(in[i].tensors[t]);
  }
}

/// The part of every tensor of the state that belongs to `owner`.
MessageShape shape_of_parts(OpContext& d, const Op& op, DeviceId owner, at::ScalarType dtype) {
  const std::vector<PlaceId>& holders = d.schedule.states[idx(op.state)].reducers();
  MessageShape shape;
  for (const at::Tensor& value : d.state.tensors(op.state).values)
    shape.tensors.push_back({dtype, part_of(value, position(holders, owner), holders.size()).sizes().vec()});
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

/// One of two ways, by the residence of the state.
template <auto whole, auto parts>
void pack_either(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  (gathered(d, op) ? parts : whole)(d, op, participants, out);
}
template <auto whole, auto parts>
void unpack_either(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  (gathered(d, op) ? parts : whole)(d, op, participants, in);
}

}  // namespace

template <>
TransferOp transfer_op<TransferKind::kReduceScatter>() {
  return {.pack = pack_either<pack_parts, pack_left>,
          .expected = expected_parts,
          .unpack = unpack_either<add_parts, add_left>};
}

template <>
TransferOp transfer_op<TransferKind::kReduce>() {
  static const TransferOp sums = {.pack = tell_sums, .expected = expected_sums, .unpack = keep_sums};
  TransferOp reduce = transfer_op<TransferKind::kReduceScatter>();
  reduce.next = &sums;
  return reduce;
}

template <>
TransferOp transfer_op<TransferKind::kAllGather>() {
  return {.pack = pack_either<pack_weights, pack_kept>,
          .expected = expected_weights,
          .unpack = unpack_either<keep_weights, join_parts>};
}

}  // namespace hetermoe
