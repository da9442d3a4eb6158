#include <utility>

#include "hetermoe/base/index.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/ops/two_level.h"

// Gradients of a state among the devices that hold it. reduce_scatter: each device adds up its part of every
// gradient. reduce: then it tells the others the sums. all_gather: it tells them its part of the updated
// weights. Gathered weights (State::gathered) are here in parts: all_gather makes them whole for a visit, and
// reduce_scatter adds what a visit leaves to the own part of the gradients. Among several nodes each of these
// goes in two levels where that pays (TwoLevel), else all exchange with all. With Plan::wire_reduce each part
// of a gradient, or of a node's sum of it, is rounded by the device that sends it to be summed. What a device
// sums itself is not.
namespace hetermoe {
namespace {

const std::vector<at::Tensor>& grads_of(OpContext& d, const Op& op) {
  return d.state.tensors(op.state).grads;
}

bool gathered(const OpContext& d, const Op& op) { return d.schedule.states[idx(op.state)].gathered(); }

/// A part of each tensor belongs to each of these.
Devices holders_of(const OpContext& d, const Op& op) { return d.schedule.states[idx(op.state)].reducers(); }
std::size_t own_part(const OpContext& d, const Op& op) { return position(holders_of(d, op), d.device()); }
std::vector<at::Tensor> parts_of_all(const OpContext& d, const Op& op, const std::vector<at::Tensor>& tensors,
                                     std::size_t part) {
  return parts_of(tensors, part, holders_of(d, op).size());
}

TwoLevel levels_of(const OpContext& d, const Op& op) { return {d.cluster, holders_of(d, op)}; }

std::vector<at::Tensor> clones(std::vector<at::Tensor> tensors) {
  for (at::Tensor& tensor : tensors) tensor = tensor.clone();
  return tensors;
}

/// Tensor `t` of all messages, added in their order and in the dtype of gradients, as one device would do it.
/// Into `sum`, or new memory.
at::Tensor sum_of(OpContext& d, const Op& op, const std::vector<Message>& in, std::size_t t,
                  at::Tensor sum = {}) {
  const at::ScalarType dtype = grads_of(d, op).front().scalar_type();
  bool first = true;
  for (const Message& message : in) {
    if (message.tensors.empty()) continue;  // of two levels: the sender stands for other parts
    const at::Tensor term = message.tensors[t];
    if (!std::exchange(first, false))
      sum.add_(term);
    else if (sum.defined())
      sum.copy_(term);
    else
      sum = term.to(dtype, /*non_blocking=*/false, /*copy=*/true);
  }
  return sum;
}

// ---- Sums ----

bool travels_narrow(const OpContext& d) { return d.p.plan().wire_reduce == WireReduce::kBf16; }

/// A part of the gradients, or of a node's sums of them, as it travels to the device that sums it. Where what
/// is lost is kept, the part itself is changed: the sum is written over it later.
std::vector<at::Tensor> as_sent(OpContext& d, const Op& op, std::size_t part,
                                std::vector<at::Tensor> tensors) {
  if (!travels_narrow(d)) return tensors;
  const Wire wire = wire_of(reduce_dtype_of(d.p.plan(), d.p.first_device(d.device())));
  const std::vector<at::Tensor> lost = parts_of_all(d, op, d.state.tensors(op.state).lost, part);
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const at::Tensor exact = tensors[t];
    tensors[t] = lost.empty() ? encode(exact, wire) : encode_with_feedback(exact, lost[t], wire);
    if (exact.numel() > 0 && !d.wire_losses.gradients.defined())
      d.wire_losses.gradients = wire_loss(exact, tensors[t]);
  }
  return tensors;
}

/// To each participant its parts. Copies, for what comes back is written over the gradients. What a visit
/// leaves, or zeros, gives its memory up to the messages.
void pack_parts(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  const State& state = d.schedule.states[idx(op.state)];
  if (state.gathered())
    d.state.store().open_grads(state.part, state.part == UnitPart::kHead ? d.p.num_layers() : state.layer);
  for (std::size_t i = 0; i < participants.size(); ++i) {
    const bool sent = participants[i] != d.device();
    out[i].tensors = parts_of_all(d, op, grads_of(d, op), i);
    if (sent) out[i].tensors = as_sent(d, op, i, std::move(out[i].tensors));
    if (!state.gathered() && !(sent && travels_narrow(d))) out[i].tensors = clones(std::move(out[i].tensors));
  }
}

/// To the own part of the gradients; of gathered weights beside what earlier visits left.
void keep_own_sum(OpContext& d, const Op& op, Devices, std::vector<Message>& in) {
  const StateTensors& state = d.state.tensors(op.state);
  if (gathered(d, op)) {
    for (std::size_t t = 0; t < state.taken.size(); ++t) state.taken[t].add_(sum_of(d, op, in, t));
    return;
  }
  const std::vector<at::Tensor> own = parts_of_all(d, op, state.grads, own_part(d, op));
  for (std::size_t t = 0; t < own.size(); ++t) sum_of(d, op, in, t, own[t]);
}

/// To each device of the node the parts for which it stands. They are not written before it has them: this
/// device stands for its own part.
void pack_for_node(OpContext& d, const Op& op, Devices mates, std::vector<Message>& out) {
  const State& state = d.schedule.states[idx(op.state)];
  if (state.gathered())
    d.state.store().open_grads(state.part, state.part == UnitPart::kHead ? d.p.num_layers() : state.layer);
  const TwoLevel levels = levels_of(d, op);
  for (std::size_t i = 0; i < mates.size(); ++i) {
    for (const std::size_t part : levels.parts_of(position(holders_of(d, op), mates[i]))) {
      std::vector<at::Tensor> tensors = parts_of_all(d, op, grads_of(d, op), part);
      if (mates[i] != d.device()) tensors = as_sent(d, op, part, std::move(tensors));
      std::move(tensors.begin(), tensors.end(), std::back_inserter(out[i].tensors));
    }
  }
}

void sum_of_node(OpContext& d, const Op& op, Devices, std::vector<Message>& in) {
  const std::size_t count = grads_of(d, op).size();
  d.node_sums.clear();
  for (std::size_t t = 0; t < in[0].tensors.size(); ++t) {
    if (t % count == 0) d.node_sums.emplace_back();
    d.node_sums.back().push_back(sum_of(d, op, in, t));
  }
}

/// To the owner of each part for which this device stands the sum of the node.
void pack_node_sums(OpContext& d, const Op& op, Devices partners, std::vector<Message>& out) {
  const std::size_t own = own_part(d, op);
  const std::vector<std::size_t> parts = levels_of(d, op).parts_of(own);
  for (std::size_t i = 0; i < parts.size(); ++i)
    out[position(partners, holders_of(d, op)[parts[i]])].tensors =
        parts[i] == own ? d.node_sums[i] : as_sent(d, op, parts[i], d.node_sums[i]);
  d.node_sums.clear();
}

// ---- Telling ----

/// What all have in the end: sums of gradients, or weights.
const std::vector<at::Tensor>& told(OpContext& d, const Op& op) {
  const StateTensors& state = d.state.tensors(op.state);
  return row_of(op.kind).carries_gradients ? state.grads : state.values;
}

/// In memory that is not written before all have read it.
std::vector<at::Tensor> own_parts(OpContext& d, const Op& op) {
  if (gathered(d, op)) return d.state.tensors(op.state).kept;
  return clones(parts_of_all(d, op, told(d, op), own_part(d, op)));
}

void keep_part(OpContext& d, const Op& op, std::size_t part, std::span<const at::Tensor> tensors) {
  const std::vector<at::Tensor> here = parts_of_all(d, op, told(d, op), part);
  for (std::size_t t = 0; t < here.size(); ++t) here[t].copy_(tensors[t]);
}

void pack_own_parts(OpContext& d, const Op& op, Devices, std::vector<Message>& out) {
  const std::vector<at::Tensor> own = own_parts(d, op);
  for (Message& message : out) message.tensors = own;
}

/// Gathered weights are made whole, with the own part.
void keep_parts(OpContext& d, const Op& op, Devices peers, std::vector<Message>& in) {
  const bool makes_whole = gathered(d, op);
  if (makes_whole) d.state.store().make_room(op.state);
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (in[i].tensors.empty() || (peers[i] == d.device() && !makes_whole)) continue;
    keep_part(d, op, position(holders_of(d, op), peers[i]), in[i].tensors);
  }
}

/// To those who stand for this device's part on their nodes.
void pack_for_nodes(OpContext& d, const Op& op, Devices partners, std::vector<Message>& out) {
  const std::vector<at::Tensor> own = own_parts(d, op);
  const TwoLevel levels = levels_of(d, op);
  for (std::size_t i = 0; i < partners.size(); ++i) {
    const std::size_t partner = position(holders_of(d, op), partners[i]);
    if (levels.stands_for(own_part(d, op), partner) == partner) out[i].tensors = own;
  }
}

/// To the devices of the node the parts for which this one stands.
void pack_for_mates(OpContext& d, const Op& op, Devices, std::vector<Message>& out) {
  std::vector<at::Tensor> all;
  for (const std::size_t part : levels_of(d, op).parts_of(own_part(d, op))) {
    for (at::Tensor& tensor : clones(parts_of_all(d, op, told(d, op), part)))
      all.push_back(std::move(tensor));
  }
  for (Message& message : out) message.tensors = all;
}

void keep_of_mates(OpContext& d, const Op& op, Devices mates, std::vector<Message>& in) {
  const TwoLevel levels = levels_of(d, op);
  const std::size_t count = told(d, op).size();
  for (std::size_t i = 0; i < in.size(); ++i) {
    if (mates[i] == d.device()) continue;
    std::span<const at::Tensor> tensors = in[i].tensors;
    for (const std::size_t part : levels.parts_of(position(holders_of(d, op), mates[i]))) {
      keep_part(d, op, part, tensors.first(count));
      tensors = tensors.subspan(count);
    }
  }
}

// ---- Shapes of messages ----

void add_shapes(OpContext& d, const Op& op, std::size_t part, at::ScalarType dtype, MessageShape& shape) {
  for (const at::Tensor& tensor : parts_of_all(d, op, d.state.tensors(op.state).values, part))
    shape.tensors.push_back({dtype, tensor.sizes().vec()});
}

/// Gradients as their sender keeps them, or its weights.
at::ScalarType dtype_of(const OpContext& d, const Op& op, PlaceId sender) {
  const Plan& plan = d.p.plan();
  return scalar_type(row_of(op.kind).carries_gradients ? grad_dtype_of(plan, d.p.first_device(sender))
                                                       : plan.dtype[idx(sender)]);
}

/// Of gradients on their way to be summed here.
at::ScalarType sent_dtype(const OpContext& d, PlaceId sender) {
  const DeviceId device = d.p.first_device(sender);
  return scalar_type(sender == d.device() ? grad_dtype_of(d.p.plan(), device)
                                          : reduce_dtype_of(d.p.plan(), device));
}

MessageShape expected_own(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  MessageShape shape;
  add_shapes(d, op, own_part(d, op), sent_dtype(d, peer), shape);
  return shape;
}

MessageShape expected_theirs(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  MessageShape shape;
  add_shapes(d, op, position(holders_of(d, op), peer), dtype_of(d, op, peer), shape);
  return shape;
}

/// All parts for which a device of the node stands.
MessageShape shape_of_stand_in(OpContext& d, const Op& op, DeviceId stand_in, at::ScalarType dtype) {
  MessageShape shape;
  for (const std::size_t part : levels_of(d, op).parts_of(position(holders_of(d, op), stand_in)))
    add_shapes(d, op, part, dtype, shape);
  return shape;
}
MessageShape expected_from_node(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of_stand_in(d, op, d.device(), sent_dtype(d, peer));
}
MessageShape expected_from_mate(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return shape_of_stand_in(d, op, peer, dtype_of(d, op, peer));
}

MessageShape expected_node_sum(OpContext& d, const Op& op, DeviceId peer, const Message& own) {
  const std::size_t sender = position(holders_of(d, op), peer);
  if (levels_of(d, op).stands_for(own_part(d, op), sender) != sender) return {};
  return expected_own(d, op, peer, own);
}
MessageShape expected_of_owner(OpContext& d, const Op& op, DeviceId peer, const Message& own) {
  const std::size_t owner = position(holders_of(d, op), peer), self = own_part(d, op);
  if (levels_of(d, op).stands_for(owner, self) != self) return {};
  return expected_theirs(d, op, peer, own);
}

// ---- Exchanges ----

std::vector<DeviceId> at_positions(Devices holders, const std::vector<std::size_t>& positions) {
  std::vector<DeviceId> devices;
  for (const std::size_t i : positions) devices.push_back(holders[i]);
  return devices;
}
std::vector<DeviceId> mates(const Cluster& cluster, Devices holders, DeviceId self) {
  return at_positions(holders, TwoLevel(cluster, holders).mates(position(holders, self)));
}
std::vector<DeviceId> partners(const Cluster& cluster, Devices holders, DeviceId self) {
  return at_positions(holders, TwoLevel(cluster, holders).partners(position(holders, self)));
}

const TransferOp& tell_mates() {
  static const TransferOp op = {
      .pack = pack_for_mates, .expected = expected_from_mate, .unpack = keep_of_mates, .peers = mates};
  return op;
}
const TransferOp& tell_nodes() {
  static const TransferOp op = {.pack = pack_for_nodes,
                                .expected = expected_of_owner,
                                .unpack = keep_parts,
                                .next = &tell_mates(),
                                .peers = partners};
  return op;
}

TransferOp sum_between_nodes(const TransferOp* next) {
  return TransferOp{.pack = pack_node_sums,
                    .expected = expected_node_sum,
                    .unpack = keep_own_sum,
                    .next = next,
                    .peers = partners};
}
TransferOp sum_in_nodes(const TransferOp& next) {
  return TransferOp{.pack = pack_for_node,
                    .expected = expected_from_node,
                    .unpack = sum_of_node,
                    .next = &next,
                    .peers = mates};
}

TransferOp sum_at_once(const TransferOp* next, const TransferOp& in_two_levels) {
  return TransferOp{.pack = pack_parts,
                    .expected = expected_own,
                    .unpack = keep_own_sum,
                    .next = next,
                    .in_two_levels = &in_two_levels};
}
TransferOp tell_at_once() {
  return TransferOp{.pack = pack_own_parts,
                    .expected = expected_theirs,
                    .unpack = keep_parts,
                    .in_two_levels = &tell_nodes()};
}

}  // namespace

ExecOp exec_ops::reduce_scatter() {
  static const TransferOp between = sum_between_nodes(nullptr), inside = sum_in_nodes(between);
  return sum_at_once(nullptr, inside);
}

ExecOp exec_ops::reduce() {
  static const TransferOp tell = tell_at_once();
  static const TransferOp between = sum_between_nodes(&tell_nodes()), inside = sum_in_nodes(between);
  return sum_at_once(&tell, inside);
}

ExecOp exec_ops::all_gather() { return tell_at_once(); }

}  // namespace hetermoe
