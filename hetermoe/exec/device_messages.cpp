#include <algorithm>
#include <cmath>

#include "hetermoe/exec/device_runtime.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/nn/rows.h"

// What transfers carry: every participant sends every other one message, empty or not.
namespace hetermoe {
namespace {

std::size_t at_(i64 i) { return static_cast<std::size_t>(i); }

std::size_t position(std::span<const DeviceId> sorted, DeviceId device) {
  return static_cast<std::size_t>(std::lower_bound(sorted.begin(), sorted.end(), device) - sorted.begin());
}

}  // namespace

std::vector<Message> DeviceRuntime::pack(const Op& op, std::span<const DeviceId> participants) {
  std::vector<Message> out(participants.size());
  const bool backward = op.phase == Phase::kBackward;
  switch (op.kind) {
    case OpKind::kDispatch:
      backward ? pack_dispatch_backward(op, participants, out) : pack_dispatch(op, participants, out);
      break;
    case OpKind::kCombine:
      backward ? pack_combine_backward(op, participants, out) : pack_combine(op, participants, out);
      break;
    case OpKind::kMove:
      pack_move(op, participants, out);
      break;
    case OpKind::kBalance:
      pack_balance(op, out);
      break;
    case OpKind::kReduce:
      pack_reduce(op, out);
      break;
    case OpKind::kNorm:
      pack_norm(out);
      break;
    default:
      HM_CHECK(false, "{} is not a transfer", to_string(op));
  }
  return out;
}

void DeviceRuntime::unpack(const Op& op, std::span<const DeviceId> participants, std::vector<Message>& in) {
  const bool backward = op.phase == Phase::kBackward;
  switch (op.kind) {
    case OpKind::kDispatch:
      backward ? unpack_dispatch_backward(op, participants, in) : unpack_dispatch(op, participants, in);
      break;
    case OpKind::kCombine:
      backward ? unpack_combine_backward(op, participants, in) : unpack_combine(op, participants, in);
      break;
    case OpKind::kMove:
      unpack_move(op, participants, in);
      break;
    case OpKind::kBalance:
      unpack_balance(op, in);
      break;
    case OpKind::kReduce:
      unpack_reduce(op, in);
      break;
    default:
      unpack_norm(in);
      break;
  }
}

/// Between two GPUs of one process a message is still its sender's memory.
at::Tensor DeviceRuntime::received(const at::Tensor& tensor) const { return tensor.to(where()); }

/// dispatch.F: rows, routing weights and indices to the owners; the number of rows and copies for every owner
/// goes to all participants, who then know the whole exchange. dispatch.R sends the same again.
void DeviceRuntime::pack_dispatch(const Op& op, std::span<const DeviceId> participants,
                                  std::vector<Message>& out) {
  if (!p_.is_source(op.group, op.layer, op.microbatch, device())) return;
  const LayerSlot& slot = slots_.layer(op.layer, op.microbatch);
  const std::vector<SendIndex>& send = slot.chunks[at_(op.chunk)].send;
  const std::vector<DeviceId>& owners = p_.owners(op.group, op.layer);
  const at::ScalarType wire = scalar_type(p_.plan().wire_forward);
  const auto [begin, end] = chunk_range(slot.send.size(0), op.chunk, p_.plan().chunks);
  std::vector<i64> counts = {end - begin};
  for (const SendIndex& index : send) {
    counts.push_back(index.num_rows());
    counts.push_back(index.num_copies());
  }
  for (Message& message : out) message.numbers = counts;
  const at::Tensor flat_weights = slot.weights.reshape({-1});
  for (std::size_t o = 0; o < owners.size(); ++o) {
    Message& message = out[position(participants, owners[o])];
    message.tensors.push_back(gather_rows(slot.send, send[o].token_R).to(wire));
    message.tensors.push_back(flat_weights.index_select(0, send[o].flat_C.to(flat_weights.device())));
    message.tensors.push_back(send[o].row_C);
    message.tensors.push_back(send[o].expert_C);
  }
}

void DeviceRuntime::unpack_dispatch(const Op& op, std::span<const DeviceId> participants,
                                    std::vector<Message>& in) {
  ChunkSlot& slot = slots_.chunk(op.layer, op.microbatch, op.chunk);
  const ShareRow& sources = p_.shares(op.group, op.layer, op.microbatch);
  const std::size_t num_owners = p_.owners(op.group, op.layer).size();
  if (op.phase == Phase::kForward) {
    slot.load = {};
    slot.load.rows_per_token.assign(num_owners, 0);
    slot.load.copies_per_token.assign(num_owners, 0);
    for (const Share& source : sources) {
      const std::vector<i64>& numbers = in[position(participants, source.device)].numbers;
      slot.load.tokens.push_back(static_cast<double>(numbers[0]));
      for (std::size_t o = 0; o < num_owners; ++o) {
        slot.load.rows.push_back(static_cast<double>(numbers[1 + 2 * o]));
        slot.load.copies.push_back(static_cast<double>(numbers[2 + 2 * o]));
      }
    }
  }
  if (!p_.is_owner(op.group, op.layer, device())) return;
  std::vector<at::Tensor> rows, weights;
  std::vector<ReceivedIndex> indices;
  for (const Share& source : sources) {
    Message& message = in[position(participants, source.device)];
    rows.push_back(received(message.tensors[0]).to(state_.dtype()));
    weights.push_back(received(message.tensors[1]).to(accumulate_type(state_.dtype())));
    indices.push_back({rows.back().size(0), message.tensors[2], message.tensors[3]});
  }
  slot.rows = rows.size() == 1 ? rows[0] : at::cat(rows);
  const ExpertSlab& slab = state_.slab(op.layer);
  slot.groups = group_copies(indices, slab.slot_of, slab.num_slots());
  slot.weights = to_grouped(slot.groups, at::cat(weights));
}

/// combine.F: each source gets its part of the weighted rows back.
void DeviceRuntime::pack_combine(const Op& op, std::span<const DeviceId> participants,
                                 std::vector<Message>& out) {
  if (!p_.is_owner(op.group, op.layer, device())) return;
  ChunkSlot& slot = slots_.chunk(op.layer, op.microbatch, op.chunk);
  const at::Tensor rows = slot.out.to(scalar_type(p_.plan().wire_forward));
  const std::size_t me = position(p_.owners(op.group, op.layer), device());
  i64 begin = 0;
  const ShareRow& sources = p_.shares(op.group, op.layer, op.microbatch);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const auto count = static_cast<i64>(slot.load.rows_between(s, me));
    out[position(participants, sources[s].device)].tensors.push_back(rows.narrow(0, begin, count));
    begin += count;
  }
}

void DeviceRuntime::unpack_combine(const Op& op, std::span<const DeviceId> participants,
                                   std::vector<Message>& in) {
  if (!p_.is_source(op.group, op.layer, op.microbatch, device())) return;
  ChunkSlot& slot = slots_.chunk(op.layer, op.microbatch, op.chunk);
  slot.returned.clear();
  for (const DeviceId owner : p_.owners(op.group, op.layer)) {
    slot.returned.push_back(received(in[position(participants, owner)].tensors[0]));
  }
  if (op.phase == Phase::kRecompute) slot.returned.clear();  // resent for its traffic only
}

/// combine.B: the gradient of the layer's output goes to the owners, a row for each row they had.
void DeviceRuntime::pack_combine_backward(const Op& op, std::span<const DeviceId> participants,
                                          std::vector<Message>& out) {
  if (!p_.is_source(op.group, op.layer, op.microbatch, device())) return;
  const LayerSlot& slot = slots_.layer(op.layer, op.microbatch);
  const std::vector<DeviceId>& owners = p_.owners(op.group, op.layer);
  for (std::size_t o = 0; o < owners.size(); ++o) {
    out[position(participants, owners[o])].tensors.push_back(
        gather_rows(slot.d_hidden, slot.chunks[at_(op.chunk)].send[o].token_R)
            .to(scalar_type(p_.plan().wire_backward)));
  }
}

void DeviceRuntime::unpack_combine_backward(const Op& op, std::span<const DeviceId> participants,
                                            std::vector<Message>& in) {
  if (!p_.is_owner(op.group, op.layer, device())) return;
  std::vector<at::Tensor> rows;
  for (const Share& source : p_.shares(op.group, op.layer, op.microbatch)) {
    rows.push_back(received(in[position(participants, source.device)].tensors[0]).to(state_.dtype()));
  }
  slots_.chunk(op.layer, op.microbatch, op.chunk).d_out = rows.size() == 1 ? rows[0] : at::cat(rows);
}

/// dispatch.B: gradients of the rows and of the routing weights go back to the sources.
void DeviceRuntime::pack_dispatch_backward(const Op& op, std::span<const DeviceId> participants,
                                           std::vector<Message>& out) {
  if (!p_.is_owner(op.group, op.layer, device())) return;
  ChunkSlot& slot = slots_.chunk(op.layer, op.microbatch, op.chunk);
  const at::Tensor rows = slot.d_rows.to(scalar_type(p_.plan().wire_backward));
  const std::size_t me = position(p_.owners(op.group, op.layer), device());
  i64 row = 0, copy = 0;
  const ShareRow& sources = p_.shares(op.group, op.layer, op.microbatch);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    Message& message = out[position(participants, sources[s].device)];
    const auto num_rows = static_cast<i64>(slot.load.rows_between(s, me));
    const auto num_copies = static_cast<i64>(slot.load.copies_between(s, me));
    message.tensors.push_back(rows.narrow(0, row, num_rows));
    message.tensors.push_back(slot.d_weights.narrow(0, copy, num_copies));
    row += num_rows;
    copy += num_copies;
  }
}

void DeviceRuntime::unpack_dispatch_backward(const Op& op, std::span<const DeviceId> participants,
                                             std::vector<Message>& in) {
  if (!p_.is_source(op.group, op.layer, op.microbatch, device())) return;
  ChunkSlot& slot = slots_.chunk(op.layer, op.microbatch, op.chunk);
  slot.d_send.clear();
  slot.d_send_weights.clear();
  for (const DeviceId owner : p_.owners(op.group, op.layer)) {
    std::vector<at::Tensor>& tensors = in[position(participants, owner)].tensors;
    slot.d_send.push_back(received(tensors[0]));
    slot.d_send_weights.push_back(received(tensors[1]));
  }
}

/// move: rows of the sequences that both sides name. Forward from the shares before the layer to those of the
/// layer.
void DeviceRuntime::pack_move(const Op& op, std::span<const DeviceId> participants,
                              std::vector<Message>& out) {
  const bool forward = op.phase == Phase::kForward;
  const i32 mine = forward ? op.layer - 1 : op.layer, theirs = forward ? op.layer : op.layer - 1;
  if (!p_.is_source(op.group, mine, op.microbatch, device())) return;
  const LayerSlot& slot = slots_.layer(op.layer, op.microbatch);
  const at::Tensor rows = (forward ? slot.move_out : slot.d_move)
                              .to(scalar_type(forward ? p_.plan().wire_forward : p_.plan().wire_backward));
  const Range own = range(op.group, mine, op.microbatch);
  const i64 seq_len = p_.plan().seq_len;
  i64 begin = 0;
  for (const Share& share : p_.shares(op.group, theirs, op.microbatch)) {
    const i64 from = std::max(begin, own.begin),
              to = std::min(begin + share.sequences, own.begin + own.sequences);
    begin += share.sequences;
    if (from >= to) continue;
    out[position(participants, share.device)].tensors.push_back(
        rows.narrow(0, (from - own.begin) * seq_len, (to - from) * seq_len));
  }
}

void DeviceRuntime::unpack_move(const Op& op, std::span<const DeviceId> participants,
                                std::vector<Message>& in) {
  const bool forward = op.phase == Phase::kForward;
  const i32 mine = forward ? op.layer : op.layer - 1, theirs = forward ? op.layer - 1 : op.layer;
  if (!p_.is_source(op.group, mine, op.microbatch, device())) return;
  std::vector<at::Tensor> rows;
  for (const Share& share : p_.shares(op.group, theirs, op.microbatch)) {
    for (at::Tensor& part : in[position(participants, share.device)].tensors)
      rows.push_back(received(part).to(state_.dtype()));
  }
  const at::Tensor all = rows.empty()       ? at::zeros({0, context_.model.hidden}, state_.options())
                         : rows.size() == 1 ? rows[0]
                                            : at::cat(rows);
  if (forward)
    slots_.layer(op.layer, op.microbatch).hidden = all;
  else
    slots_.layer(op.layer - 1, op.microbatch).d_hidden = all;
}

/// balance: expert counts of the set's load-balancing groups, summed over layers here and over devices there.
at::Tensor DeviceRuntime::balance_counts(const Op& op) const {
  std::vector<at::Tensor> counts;
  i64 sequences = 0;
  for (const MicrobatchRef& member : p_.balance_set(p_.balance_set_of(op.group, op.microbatch))) {
    const i64 size = p_.plan().groups[at_(member.group)].microbatches[at_(member.microbatch)];
    at::Tensor of_microbatch;
    if (member.group == group_)
      of_microbatch = const_cast<Slots&>(slots_).microbatch(member.microbatch).counts;
    counts.push_back(of_microbatch.defined() ? of_microbatch
                                             : at::zeros({size, context_.model.num_experts}, at::kLong));
    sequences += size;
  }
  const i64 size = p_.options().aux_group > 0 ? p_.options().aux_group : total_sequences(p_.plan());
  return at::cat(counts).view({sequences / size, size, context_.model.num_experts}).sum(1);
}

void DeviceRuntime::pack_balance(const Op& op, std::vector<Message>& out) {
  const at::Tensor counts = balance_counts(op);
  for (Message& message : out) message.tensors.push_back(counts);
}

void DeviceRuntime::unpack_balance(const Op& op, std::vector<Message>& in) {
  at::Tensor counts = in[0].tensors[0].clone();
  for (std::size_t i = 1; i < in.size(); ++i) counts.add_(in[i].tensors[0]);
  const i64 step_tokens = total_sequences(p_.plan()) * p_.plan().seq_len;
  const at::Tensor gradient =
      balance_gradient(context_.model, counts, step_tokens, accumulate_type(state_.dtype()));
  const i64 size = p_.options().aux_group > 0 ? p_.options().aux_group : total_sequences(p_.plan());
  const at::Tensor by_sequence = gradient.repeat_interleave(size, 0).mul_(input_->loss_scale).to(where());
  i64 begin = 0;
  for (const MicrobatchRef& member : p_.balance_set(p_.balance_set_of(op.group, op.microbatch))) {
    const i64 sequences = p_.plan().groups[at_(member.group)].microbatches[at_(member.microbatch)];
    if (member.group == group_) {
      MicrobatchSlot& slot = slots_.microbatch(member.microbatch);
      if (slot.counts.defined()) slot.balance = by_sequence.narrow(0, begin, sequences);
    }
    begin += sequences;
  }
}

/// reduce: everybody gets everybody's gradients and adds them in device order, so that all replicas end
/// bit-equal.
void DeviceRuntime::pack_reduce(const Op& op, std::vector<Message>& out) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& grad : state_.tensors(op.state).grads) copies.push_back(grad.clone());
  for (Message& message : out) message.tensors = copies;
}

void DeviceRuntime::unpack_reduce(const Op& op, std::vector<Message>& in) {
  std::vector<at::Tensor>& grads = state_.tensors(op.state).grads;
  for (std::size_t t = 0; t < grads.size(); ++t) {
    grads[t].copy_(in[0].tensors[t]);
    for (std::size_t i = 1; i < in.size(); ++i) grads[t].add_(received(in[i].tensors[t]));
  }
}

/// norm: squared gradients of the states whose first device this is, losses and expert counts. With these in
/// every message each device ends with the same numbers of the whole step.
void DeviceRuntime::pack_norm(std::vector<Message>& out) {
  Message mine;
  for (std::size_t s = 0; s < context_.schedule.states.size(); ++s) {
    if (!p_.trains(static_cast<i32>(s)) || context_.schedule.states[s].devices[0] != device()) continue;
    mine.numbers.push_back(static_cast<i64>(s));
    mine.values.push_back(squared_norm(state_.tensors(static_cast<i32>(s)).grads).item<double>());
  }
  double aux = 0;
  for (const auto& layer : aux_) {
    for (const at::Tensor& value : layer) aux += value.defined() ? value.item<double>() : 0;
  }
  mine.values.push_back(forward_loss());
  mine.values.push_back(aux / input_->loss_scale);  // computed from the scaled gradient
  mine.tensors.push_back(counts_LE_);
  for (Message& message : out) message = mine;
}

void DeviceRuntime::unpack_norm(std::vector<Message>& in) {
  std::vector<double> squares(context_.schedule.states.size(), 0);
  result_.counts_LE = at::zeros_like(counts_LE_);
  for (const Message& message : in) {
    for (std::size_t i = 0; i < message.numbers.size(); ++i)
      squares[at_(message.numbers[i])] = message.values[i];
    result_.loss += message.values[message.numbers.size()];
    result_.aux_loss += message.values[message.numbers.size() + 1];
    result_.counts_LE.add_(message.tensors[0]);
  }
  double sum = 0;
  for (const double square : squares) sum += square;
  sum /= input_->loss_scale * input_->loss_scale;
  result_.grad_norm = std::sqrt(sum);
  result_.updated = std::isfinite(sum) && std::isfinite(result_.loss) && std::isfinite(result_.aux_loss);
  grad_factor_ = clip_factor(sum, input_->max_grad_norm) / input_->loss_scale;
}

}  // namespace hetermoe
