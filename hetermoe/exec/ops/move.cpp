#include <algorithm>

#include "hetermoe/comm/codec.h"
#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/nn/rows.h"
#include "hetermoe/ops/work.h"

// move: rows to the device that has the next layer's share, or what backward starts from to the device of
// backward.
namespace hetermoe {
namespace {

/// What is moved, a row or more per token, in the types in which it travels.
std::vector<at::Tensor> moved(OpContext& d, const Op& op) {
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  if (op.phase == Phase::kForward) return {encoded(d, op, slot.move_out)};
  if (op.phase == Phase::kBackward) return {encoded(d, op, slot.d_move)};
  return backward_start(d, op);
}

/// Rows of the tokens that both sides name.
void pack_activations(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  const auto [senders, receivers] = d.p.move_of(op);
  if (!senders.has(d.device())) return;
  const std::vector<at::Tensor> tensors = moved(d, op);
  const TokenRange own = senders.of(d.device());
  for (const TokenRange range : receivers) {
    const i64 tokens = shared_tokens(own, range);
    if (tokens == 0) continue;
    for (const at::Tensor& tensor : tensors) {
      out[position(participants, range.device)].tensors.push_back(
          tensor.narrow(0, std::max(range.begin, own.begin) - own.begin, tokens));
    }
  }
}

at::Tensor joined(OpContext& d, std::vector<at::Tensor> rows) {
  if (rows.empty()) return at::zeros({0, d.model.hidden}, d.state.options());
  return rows.size() == 1 ? rows[0] : at::cat(rows);
}

/// Whole ranges of one sender each.
void unpack_saved_activations(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  const auto [senders, receivers] = d.p.move_of(op);
  const DeviceId sender = senders.device(idx(receivers.index_of(d.device())));
  std::vector<at::Tensor> tensors;
  for (const at::Tensor& tensor : in[position(participants, sender)].tensors)
    tensors.push_back(d.received(tensor));
  if (tensors.empty()) {  // no sequences
    const at::TensorOptions options = d.state.options();
    tensors = {joined(d, {}), at::empty({0, d.model.top_k}, options.dtype(at::kLong)),
               at::empty({0, d.model.top_k}, options.dtype(accumulate_type(d.state.dtype())))};
  }
  set_backward_start(d, op, tensors);
}

void unpack_activations(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  const auto [senders, receivers] = d.p.move_of(op);
  if (!receivers.has(d.device())) return;
  if (op.phase == Phase::kRecompute) return unpack_saved_activations(d, op, participants, in);
  std::vector<at::Tensor> rows;
  for (const TokenRange range : senders) {
    for (at::Tensor& part : in[position(participants, range.device)].tensors)
      rows.push_back(decoded(d, op, part).to(d.state.dtype()));
  }
  if (op.phase == Phase::kForward)
    d.slots.layer(op.layer, op.microbatch).hidden = joined(d, std::move(rows));
  else
    d.slots.layer(op.layer - 1, op.microbatch).d_hidden = joined(d, std::move(rows));
}

/// The rows of the tokens that the peer had and this device gets.
MessageShape expected_activations(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  const auto [senders, receivers] = d.p.move_of(op);
  const i64 tokens = shared_tokens(senders.of(peer), receivers.of(d.device()));
  MessageShape shape;
  if (tokens == 0) return shape;
  const Plan& plan = d.p.plan();
  if (op.phase != Phase::kRecompute) {
    shape.tensors = {encoded_part(wire_of(op, plan), tokens, d.model.hidden)};
    return shape;
  }
  const at::ScalarType theirs = scalar_type(plan.dtype[idx(peer)]);
  shape.tensors.push_back({theirs, {tokens, d.model.hidden}});
  if (!d.p.is_moe(op.layer)) return shape;
  shape.tensors.push_back({at::kLong, {tokens, d.model.top_k}});
  shape.tensors.push_back({accumulate_type(theirs), {tokens, d.model.top_k}});
  return shape;
}

/// Experts that index parameters and tables.
void check_choices(OpContext& d, const Op& op, DeviceId peer, const Message& message) {
  if (op.phase != Phase::kRecompute || message.tensors.size() < 2 || message.tensors[1].numel() == 0) return;
  const i64 least = message.tensors[1].min().item<i64>(), most = message.tensors[1].max().item<i64>();
  if (least >= 0 && most < d.model.num_experts) return;
  fail<TransportError>(d.name_of_peer(peer), "chosen experts: got {} to {}, expected 0 to {}", least, most,
                       d.model.num_experts - 1);
}

}  // namespace

std::vector<at::Tensor> backward_start(OpContext& d, const Op& op) {
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  if (!d.p.is_moe(op.layer)) return {slot.hidden};
  return {slot.hidden, slot.topk, slot.weights};
}

void set_backward_start(OpContext& d, const Op& op, const std::vector<at::Tensor>& tensors) {
  LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  slot.hidden = tensors[0];
  if (!d.p.is_moe(op.layer)) return;
  slot.topk = tensors[1];
  slot.weights = tensors[2];
  route(d, op, slot);
}

ExecOp exec_ops::move() {
  return TransferOp{.pack = pack_activations,
                    .expected = expected_activations,
                    .check_content = check_choices,
                    .unpack = unpack_activations};
}

}  // namespace hetermoe
