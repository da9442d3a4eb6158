#include <array>

#include "hetermoe/base/index.h"
#include "hetermoe/device/host_copy.h"
#include "hetermoe/exec/ops/op_functions.h"

// fetch: parameters of a state go from the host to a device. store: gradients go back. Or activations, in
// the other order. Both sides are in one process, where a message is its sender's memory: the second exchange
// tells the sender that it was copied.
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
  const bool is_old = d.p.states().lags(op.state) && !tensors.published.empty();
  std::vector<at::Tensor> all = is_old ? tensors.published : tensors.visitors();
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

/// The tensors of `groups`, in one order.
template <class Groups>
auto tensors_of(Groups& groups) {
  return std::array{&groups.row_C, &groups.arrival_C, &groups.ends, &groups.by_row_C,
                    &groups.begin_of_row_R1};
}

std::vector<at::Tensor> shapes_of(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> shapes;
  for (const at::Tensor& tensor : tensors) shapes.push_back(tensor.to(at::kMeta));
  return shapes;
}

/// To a GPU without waiting: the host hears of the end by copied(). To the host by way of pinned memory.
at::Tensor to_place(const at::Tensor& tensor, c10::Device where) {
  return where.is_cpu() ? to_host(tensor, "copies to the host") : to_device(tensor, where);
}

std::vector<at::Tensor> copies_of(const std::vector<at::Tensor>& tensors, c10::Device where) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors)
    copies.push_back(tensor.device() == where ? tensor.clone() : to_place(tensor, where));
  return copies;
}

ChunkSlot& rows_of(OpContext& d, const Op& op) {
  return d.slots.chunk(op.layer, op.microbatch, op.chunk - 1);
}
SavedSlot& on_host(OpContext& d, const Op& op) {
  return d.slots.saved(op.layer, op.microbatch, saved_piece(op, d.p));
}

/// It comes to another device.
bool roams(const OpContext& d, const Op& op) { return d.p.roams(op.group, op.layer, op.microbatch); }

/// What leaves a device, which keeps shapes and numbers.
std::vector<at::Tensor> leave(OpContext& d, const Op& op) {
  if (roams(d, op)) return backward_start(d, op);
  if (op.chunk == 0) {
    LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
    slot.away = slot.hidden.to(at::kMeta);
    return {slot.hidden};
  }
  ChunkSlot& slot = rows_of(d, op);
  std::vector<at::Tensor> all = {slot.rows, slot.weights};
  slot.away_groups = slot.groups;
  for (at::Tensor* tensor : tensors_of(slot.away_groups)) {
    if (!tensor->defined()) continue;
    all.push_back(*tensor);
    *tensor = tensor->to(at::kMeta);
  }
  slot.away = shapes_of(all);
  return all;
}

/// What leave() gave away is here again, or comes to the device of backward.
void come_back(OpContext& d, const Op& op, const std::vector<at::Tensor>& tensors) {
  if (roams(d, op)) return set_backward_start(d, op, tensors);
  if (op.chunk == 0) {
    d.slots.layer(op.layer, op.microbatch).hidden = tensors[0];
    return;
  }
  ChunkSlot& slot = rows_of(d, op);
  slot.rows = tensors[0];
  slot.weights = tensors[1];
  slot.groups = slot.away_groups;
  std::size_t next = 2;
  for (at::Tensor* tensor : tensors_of(slot.groups)) {
    if (tensor->defined()) *tensor = tensors[next++];
  }
}

void pack_saved(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (d.device() != op.device) {
    if (row_of(op.kind).from_host) send(d, participants, out, on_host(d, op).tensors);
    return;
  }
  if (row_of(op.kind).from_host) return;
  send(d, participants, out, leave(d, op));
  if (op.chunk == 0) return;
  const ExchangeLoad& load = rows_of(d, op).load;  // for the host's clock
  std::vector<double>& values = out[1 - position(participants, d.device())].values;
  values = load.rows;
  values.insert(values.end(), load.copies.begin(), load.copies.end());
}

void unpack_saved(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  const Message& message = received(d, participants, in);
  if (d.device() == op.device) {
    if (row_of(op.kind).from_host) come_back(d, op, copies_of(message.tensors, d.where()));
    return;
  }
  if (row_of(op.kind).from_host) return;
  SavedSlot& slot = on_host(d, op);
  slot.tensors = copies_of(message.tensors, d.where());
  if (op.chunk == 0) return;
  const auto half = static_cast<std::ptrdiff_t>(message.values.size() / 2);
  slot.load = {};
  slot.load.rows.assign(message.values.begin(), message.values.begin() + half);
  slot.load.copies.assign(message.values.begin() + half, message.values.end());
  slot.load.rows_per_token.assign(d.p.owners(op.group, op.layer).size(), 0);
  slot.load.tokens.assign(slot.load.rows.size() / slot.load.rows_per_token.size(), 0);
}

const TransferOp& saved_copy() {
  static const TransferOp copy = {
      .pack = pack_saved, .expected = nullptr, .unpack = unpack_saved, .next = &copied()};
  return copy;
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
  for (std::size_t i = 0; i < to.size(); ++i) to[i].copy_(from[i], /*non_blocking=*/true);
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
      sum[i].add_(to_place(from[i], d.where()));
    else
      sum[i].copy_(from[i]);
  }
}

}  // namespace

ExecOp exec_ops::fetch() {
  return TransferOp{.pack = pack_fetch,
                    .expected = expected_fetch,
                    .unpack = unpack_fetch,
                    .next = &copied(),
                    .of_saved = &saved_copy()};
}

ExecOp exec_ops::store() {
  return TransferOp{.pack = pack_store,
                    .expected = expected_store,
                    .unpack = unpack_store,
                    .next = &copied(),
                    .of_saved = &saved_copy()};
}

}  // namespace hetermoe
