#include <algorithm>

#include "hetermoe/comm/codec.h"
#include "hetermoe/exec/ops/next_routing.h"
#include "hetermoe/nn/rows.h"
#include "hetermoe/ops/work.h"

// move: rows to the device that has the next layer's share, or what backward starts from to the device of
// backward. Where results of experts go to the next layer, the rows are the residual stream, and owners of
// choices and counts go along.
namespace hetermoe {
namespace {

/// What is moved, a row or more per token, in the types in which it travels.
std::vector<at::Tensor> moved(OpContext& d, const Op& op) {
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  const LayerSlot& before = d.slots.layer(op.layer - 1, op.microbatch);
  if (carries_owners(op, d.p)) return {encoded(d, op, before.residual), before.owner_TK};
  if (carries_residual(op, d.p))
    return {encoded(d, op, op.phase == Phase::kForward ? before.residual : before.d_hidden)};
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
    Message& message = out[position(participants, range.device)];
    const i64 tokens = shared_tokens(own, range);
    for (std::size_t i = 0; tokens > 0 && i < tensors.size(); ++i)
      message.tensors.push_back(tensors[i].narrow(0, std::max(range.begin, own.begin) - own.begin, tokens));
    if (told_by_move(op, d.p, range.device))
      message.tensors.push_back(d.slots.layer(op.layer - 1, op.microbatch).next_CSO);
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
  std::vector<at::Tensor> tensors = in[position(participants, sender)].tensors;
  if (tensors.empty()) {  // no sequences
    const at::TensorOptions options = d.state.options();
    tensors = {joined(d, {}), at::empty({0, d.model.top_k}, options.dtype(at::kLong)),
               at::empty({0, d.model.top_k}, options.dtype(accumulate_type(d.state.dtype())))};
  }
  set_backward_start(d, op, tensors);
}

/// The residual stream, and which rows of experts will come from whom.
void unpack_residual(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in,
                     std::vector<at::Tensor> rows) {
  LayerSlot& slot = d.slots.layer(op.layer - 1, op.microbatch);
  slot.residual = joined(d, std::move(rows));
  if (!carries_owners(op, d.p)) return;
  std::vector<at::Tensor> owners, counts;
  for (const TokenRange range : d.p.move_of(op).from) {
    const std::vector<at::Tensor>& tensors = in[position(participants, range.device)].tensors;
    if (tensors.size() > 1) owners.push_back(tensors[1]);
    if (told_by_move(op, d.p, d.device())) counts.push_back(tensors.back());
  }
  const at::TensorOptions ints = d.state.options().dtype(at::kInt);
  slot.owner_TK = owners.empty() ? at::empty({0, d.model.top_k}, ints) : at::cat(owners);
  take_next(d, op, slot);
  if (!counts.empty()) take_next_counts(d, op, slot, counts);
}

void unpack_activations(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  const auto [senders, receivers] = d.p.move_of(op);
  if (!receivers.has(d.device())) return;
  if (op.phase == Phase::kRecompute) return unpack_saved_activations(d, op, participants, in);
  std::vector<at::Tensor> rows;
  for (const TokenRange range : senders) {
    if (shared_tokens(range, receivers.of(d.device())) == 0) continue;
    const at::Tensor& part = in[position(participants, range.device)].tensors[0];
    rows.push_back(decoded(d, op, part).to(d.state.dtype()));
  }
  if (op.phase == Phase::kBackward)
    d.slots.layer(op.layer - 1, op.microbatch).d_hidden = joined(d, std::move(rows));
  else if (carries_residual(op, d.p))
    unpack_residual(d, op, participants, in, std::move(rows));
  else
    d.slots.layer(op.layer, op.microbatch).hidden = joined(d, std::move(rows));
}

/// What comes with the residual stream.
void add_next_shapes(OpContext& d, const Op& op, DeviceId peer, i64 tokens, MessageShape& shape) {
  if (tokens > 0 && carries_owners(op, d.p)) shape.tensors.push_back({at::kInt, {tokens, d.model.top_k}});
  const TokenRanges senders = d.p.move_of(op).from;
  if (!senders.has(peer) || !told_by_move(op, d.p, d.device())) return;
  const i64 counts = num_next_counts(d, op, op.layer - 1, idx(senders.index_of(peer)));
  shape.tensors.push_back({at::kInt, {d.p.plan().chunks * counts}});
}

/// The rows of the tokens that the peer had and this device gets.
MessageShape expected_activations(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  const auto [senders, receivers] = d.p.move_of(op);
  const i64 tokens = shared_tokens(senders.of(peer), receivers.of(d.device()));
  MessageShape shape;
  const Plan& plan = d.p.plan();
  if (op.phase != Phase::kRecompute) {
    if (tokens > 0) shape.tensors = {encoded_part(wire_of(op, plan), tokens, d.model.hidden)};
    add_next_shapes(d, op, peer, tokens, shape);
    return shape;
  }
  if (tokens == 0) return shape;
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
