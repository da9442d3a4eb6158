#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/nn/router.h"
#include "hetermoe/nn/rows.h"

// dispatch: rows to the owners of experts; backward, their gradients back.
namespace hetermoe {
namespace {

/// dispatch.F: rows, routing weights and indices to the owners; the number of rows and copies for every owner
/// goes to all participants, who then know the whole exchange. dispatch.R sends the same again.
void pack_forward(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (!d.is_source(op)) return;
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  const std::vector<SendIndex>& send = slot.chunks[idx(op.chunk)].send;
  const std::vector<DeviceId>& owners = d.p.owners(op.group, op.layer);
  const at::ScalarType wire = scalar_type(d.p.plan().wire_forward);
  const auto [begin, end] = chunk_range(slot.send.size(0), op.chunk, d.p.plan().chunks);
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

void unpack_forward(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  const ShareRow& sources = d.p.shares(op.group, op.layer, op.microbatch);
  const std::size_t num_owners = d.p.owners(op.group, op.layer).size();
  if (op.phase == Phase::kForward) {
    slot.load = {};
    slot.load.rows_per_token.assign(num_owners, 0);
    slot.load.copies_per_token.assign(num_owners, 0);
    for (const Share& source : sources) {
      const std::vector<i64>& numbers = in[position(participants, source.device)].numbers;
      slot.load.tokens.push_back(real(numbers[0]));
      for (std::size_t o = 0; o < num_owners; ++o) {
        slot.load.rows.push_back(real(numbers[1 + 2 * o]));
        slot.load.copies.push_back(real(numbers[2 + 2 * o]));
      }
    }
  }
  if (!d.is_owner(op)) return;
  std::vector<at::Tensor> rows, weights;
  std::vector<ReceivedIndex> indices;
  for (const Share& source : sources) {
    Message& message = in[position(participants, source.device)];
    rows.push_back(d.received(message.tensors[0]).to(d.state.dtype()));
    weights.push_back(d.received(message.tensors[1]).to(accumulate_type(d.state.dtype())));
    indices.push_back({rows.back().size(0), message.tensors[2], message.tensors[3]});
  }
  slot.rows = rows.size() == 1 ? rows[0] : at::cat(rows);
  const ExpertSlab& slab = d.state.slab(op.layer);
  slot.groups = group_copies(indices, slab.slot_of, slab.num_slots());
  slot.weights = to_grouped(slot.groups, at::cat(weights));
}

/// Of a source: its counts for all owners and, when this device is one, so many rows and copies of them.
MessageShape shape_of_dispatch(OpContext& d, std::size_t num_owners, DeviceId peer, bool here, i64 rows,
                               i64 copies) {
  MessageShape shape;
  shape.numbers = 1 + 2 * num_owners;
  if (!here) return shape;
  const at::ScalarType theirs = scalar_type(d.p.plan().dtype[idx(peer)]);
  shape.tensors = {{scalar_type(d.p.plan().wire_forward), {rows, d.model.hidden}},
                   {accumulate_type(theirs), {copies}},
                   {at::kLong, {copies}},
                   {at::kLong, {copies}}};
  return shape;
}

/// dispatch.R: by what dispatch.F told.
MessageShape expected_again(OpContext& d, const Op& op, DeviceId peer) {
  const std::vector<DeviceId>& owners = d.p.owners(op.group, op.layer);
  const i64 source = source_index(d.p.shares(op.group, op.layer, op.microbatch), peer);
  const i64 me = owner_index(owners, d.device());
  if (source < 0) return {};
  if (me < 0) return shape_of_dispatch(d, owners.size(), peer, false, 0, 0);
  const ExchangeLoad& load = d.slots.chunk(op.layer, op.microbatch, op.chunk).load;
  return shape_of_dispatch(d, owners.size(), peer, true,
                           static_cast<i64>(load.rows_between(idx(source), idx(me))),
                           static_cast<i64>(load.copies_between(idx(source), idx(me))));
}

/// dispatch.F: by the counts that it tells.
MessageShape told_by_counts(OpContext& d, const Op& op, DeviceId peer, const Message& message) {
  const ShareRow& sources = d.p.shares(op.group, op.layer, op.microbatch);
  const std::vector<DeviceId>& owners = d.p.owners(op.group, op.layer);
  const i64 source = source_index(sources, peer), me = owner_index(owners, d.device());
  if (source < 0) return {};
  const std::string where = d.name_of_peer(peer);
  check_count(where, "numbers", message.numbers.size(), 1 + 2 * owners.size());
  const auto [begin, end] =
      chunk_range(sources[idx(source)].sequences * d.p.plan().seq_len, op.chunk, d.p.plan().chunks);
  if (message.numbers[0] != end - begin)
    fail<TransportError>(where, "tokens: got {}, expected {}", message.numbers[0], end - begin);
  i64 copies = 0;
  for (std::size_t o = 0; o < owners.size(); ++o) {
    const i64 rows_to = message.numbers[1 + 2 * o], copies_to = message.numbers[2 + 2 * o];
    if (rows_to < 0 || rows_to > copies_to) {
      fail<TransportError>(where, "rows for device {}: got {}, expected 0 to {}, its copies", owners[o],
                           rows_to, copies_to);
    }
    copies += copies_to;
  }
  if (copies != (end - begin) * d.model.top_k) {
    fail<TransportError>(where,
                         "copies for all devices: got {}, expected {} ({} tokens with {} experts each)",
                         copies, (end - begin) * d.model.top_k, end - begin, d.model.top_k);
  }
  if (me < 0) return shape_of_dispatch(d, owners.size(), peer, false, 0, 0);
  return shape_of_dispatch(d, owners.size(), peer, true, message.numbers[1 + 2 * idx(me)],
                           message.numbers[2 + 2 * idx(me)]);
}

/// Rows and experts of the copies: kernels read by them without looking.
void check_indices(OpContext& d, const Op& op, DeviceId peer, const Message& message) {
  if (op.phase == Phase::kBackward || message.tensors.empty()) return;
  const std::vector<i64>& slot_of = d.state.slab(op.layer).slot_of;
  const i64 num_rows = message.tensors[0].size(0);
  const at::Tensor rows = message.tensors[2].contiguous(), experts = message.tensors[3].contiguous();
  for (i64 c = 0; c < rows.numel(); ++c) {
    const i64 row = rows.const_data_ptr<i64>()[c], expert = experts.const_data_ptr<i64>()[c];
    if (row < 0 || row >= num_rows) {
      fail<TransportError>(d.name_of_peer(peer), "row of copy {}: got {}, expected 0 to {}", c, row,
                           num_rows - 1);
    }
    if (expert < 0 || expert >= static_cast<i64>(slot_of.size()) || slot_of[idx(expert)] < 0)
      fail<TransportError>(d.name_of_peer(peer), "expert of copy {}: got {}, which is not here", c, expert);
  }
}

/// dispatch.B: gradients of the rows and of the routing weights go back to the sources.
void pack_backward(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (!d.is_owner(op)) return;
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  const at::Tensor rows = slot.d_rows.to(scalar_type(d.p.plan().wire_backward));
  const std::size_t me = position(d.p.owners(op.group, op.layer), d.device());
  i64 row = 0, copy = 0;
  const ShareRow& sources = d.p.shares(op.group, op.layer, op.microbatch);
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

void unpack_backward(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (!d.is_source(op)) return;
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  slot.d_send.clear();
  slot.d_send_weights.clear();
  for (const DeviceId owner : d.p.owners(op.group, op.layer)) {
    std::vector<at::Tensor>& tensors = in[position(participants, owner)].tensors;
    slot.d_send.push_back(d.received(tensors[0]));
    slot.d_send_weights.push_back(d.received(tensors[1]));
  }
}

void pack(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  op.phase == Phase::kBackward ? pack_backward(d, op, participants, out)
                               : pack_forward(d, op, participants, out);
}

void unpack(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  op.phase == Phase::kBackward ? unpack_backward(d, op, participants, in)
                               : unpack_forward(d, op, participants, in);
}

std::optional<MessageShape> expected(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  if (op.phase == Phase::kBackward) return expected_rows_back(d, op, peer);
  if (op.phase == Phase::kForward) return std::nullopt;
  return expected_again(d, op, peer);
}

}  // namespace

template <>
TransferOp transfer_op<TransferKind::kDispatch>() {
  return {.pack = pack,
          .expected = expected,
          .told = told_by_counts,
          .check_content = check_indices,
          .unpack = unpack};
}

}  // namespace hetermoe
