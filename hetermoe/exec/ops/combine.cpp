#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/nn/rows.h"

// combine: weighted rows back to the sources, or on to the devices of the next layer; backward, gradients of
// the layer's output from there to the owners.
namespace hetermoe {
namespace {

/// combine.F: each source gets its part of the weighted rows back.
void pack_sums_forward(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (!d.sends(op)) return;
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  const at::Tensor rows = encoded(d, op, slot.out);
  const Exchange exchange(op, d.p);
  const TokenRanges sources = exchange.sources();
  const std::size_t me = exchange.owner_index(d.device());
  i64 begin = 0;
  for (std::size_t s = 0; s < sources.size(); ++s) {
    const auto count = static_cast<i64>(exchange.rows_between(slot.load, s, me));
    out[position(participants, sources.device(s))].tensors.push_back(rows.narrow(0, begin, count));
    begin += count;
  }
}

void unpack_sums_forward(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (!d.receives(op)) return;
  ChunkSlot& slot = d.slots.chunk(op.layer, op.microbatch, op.chunk);
  slot.returned.clear();
  for (const DeviceId owner : d.p.owners(op)) {
    slot.returned.push_back(decoded(d, op, in[position(participants, owner)].tensors[0]));
  }
  if (op.phase == Phase::kRecompute) slot.returned.clear();  // resent for its traffic only
}

/// combine.B: the gradient of the layer's output goes to the owners, a row for each row they had.
void pack_sums_backward(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  if (!d.sends(op)) return;
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  const std::vector<DeviceId>& owners = d.p.owners(op);
  for (std::size_t o = 0; o < owners.size(); ++o) {
    out[position(participants, owners[o])].tensors.push_back(
        encoded(d, op, gather_rows(slot.d_hidden, slot.chunks[idx(op.chunk)].routed.send[o].token_R)));
  }
}

void unpack_sums_backward(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  if (!d.receives(op)) return;
  std::vector<at::Tensor> rows;
  for (const TokenRange source : Exchange(op, d.p).sources()) {
    rows.push_back(decoded(d, op, in[position(participants, source.device)].tensors[0]).to(d.state.dtype()));
  }
  d.slots.chunk(op.layer, op.microbatch, op.chunk).d_out = rows.size() == 1 ? rows[0] : at::cat(rows);
}

void pack_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  op.phase == Phase::kBackward ? pack_sums_backward(d, op, participants, out)
                               : pack_sums_forward(d, op, participants, out);
}

void unpack_sums(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  op.phase == Phase::kBackward ? unpack_sums_backward(d, op, participants, in)
                               : unpack_sums_forward(d, op, participants, in);
}

MessageShape expected_row_sums(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  return expected_rows_back(d, op, peer);
}

}  // namespace

ExecOp exec_ops::combine() {
  return TransferOp{.pack = pack_sums, .expected = expected_row_sums, .unpack = unpack_sums};
}

}  // namespace hetermoe
