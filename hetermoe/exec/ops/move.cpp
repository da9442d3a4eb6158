#include <algorithm>

#include "hetermoe/exec/ops/op_functions.h"
#include "hetermoe/nn/rows.h"

// move: rows to the device that has the next layer's share.
namespace hetermoe {
namespace {

/// move: rows of the sequences that both sides name. Forward from the shares before the layer to those of the
/// layer.
void pack(OpContext& d, const Op& op, Devices participants, std::vector<Message>& out) {
  const bool forward = op.phase == Phase::kForward;
  const i32 mine = forward ? op.layer - 1 : op.layer, theirs = forward ? op.layer : op.layer - 1;
  if (!d.p.is_source(op.group, mine, op.microbatch, d.device())) return;
  const LayerSlot& slot = d.slots.layer(op.layer, op.microbatch);
  const at::Tensor rows = (forward ? slot.move_out : slot.d_move)
                              .to(scalar_type(forward ? d.p.plan().wire_forward : d.p.plan().wire_backward));
  const OpContext::Range own = d.range(op.group, mine, op.microbatch);
  const i64 seq_len = d.p.plan().seq_len;
  i64 begin = 0;
  for (const Share& share : d.p.shares(op.group, theirs, op.microbatch)) {
    const i64 from = std::max(begin, own.begin),
              to = std::min(begin + share.sequences, own.begin + own.sequences);
    begin += share.sequences;
    if (from >= to) continue;
    out[position(participants, share.device)].tensors.push_back(
        rows.narrow(0, (from - own.begin) * seq_len, (to - from) * seq_len));
  }
}

void unpack(OpContext& d, const Op& op, Devices participants, std::vector<Message>& in) {
  const bool forward = op.phase == Phase::kForward;
  const i32 mine = forward ? op.layer : op.layer - 1, theirs = forward ? op.layer - 1 : op.layer;
  if (!d.p.is_source(op.group, mine, op.microbatch, d.device())) return;
  std::vector<at::Tensor> rows;
  for (const Share& share : d.p.shares(op.group, theirs, op.microbatch)) {
    for (at::Tensor& part : in[position(participants, share.device)].tensors)
      rows.push_back(d.received(part).to(d.state.dtype()));
  }
  const at::Tensor all = rows.empty()       ? at::zeros({0, d.model.hidden}, d.state.options())
                         : rows.size() == 1 ? rows[0]
                                            : at::cat(rows);
  if (forward)
    d.slots.layer(op.layer, op.microbatch).hidden = all;
  else
    d.slots.layer(op.layer - 1, op.microbatch).d_hidden = all;
}

/// The rows of the sequences that the peer had and this device gets.
MessageShape expected(OpContext& d, const Op& op, DeviceId peer, const Message&) {
  const bool forward = op.phase == Phase::kForward;
  const i32 mine = forward ? op.layer : op.layer - 1, theirs = forward ? op.layer - 1 : op.layer;
  const OpContext::Range own = d.range(op.group, mine, op.microbatch);
  i64 begin = 0, shared = 0;
  for (const Share& share : d.p.shares(op.group, theirs, op.microbatch)) {
    const i64 from = std::max(begin, own.begin),
              to = std::min(begin + share.sequences, own.begin + own.sequences);
    begin += share.sequences;
    if (share.device == peer) shared = std::max<i64>(0, to - from);
  }
  MessageShape shape;
  if (shared == 0) return shape;
  shape.tensors.push_back({scalar_type(forward ? d.p.plan().wire_forward : d.p.plan().wire_backward),
                           {shared * d.p.plan().seq_len, d.model.hidden}});
  return shape;
}

}  // namespace

template <>
TransferOp transfer_op<TransferKind::kMove>() {
  return {.pack = pack, .expected = expected, .unpack = unpack};
}

}  // namespace hetermoe
