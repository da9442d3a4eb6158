#include "hetermoe/base/index.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/buffer_sizes.h"

// The residual stream goes from the shares of a layer to those of the next, its gradient back; and what
// backward starts from goes to where backward is.
namespace hetermoe {
namespace {

/// From the devices of forward to those of backward.
void accesses_of_saved(AccessList& list) {
  const Op& op = list.op;
  const bool gives = list.p.has_range(op.group, op.layer, op.microbatch, list.device);
  list.add(Buffer::kHidden, gives ? Mode::kRead : Mode::kWrite);
  if (list.is_moe()) list.add(Buffer::kRouting, gives ? Mode::kRead : Mode::kWrite);
}

void move_accesses(AccessList& list) {
  const i32 layer = list.op.layer;
  switch (list.op.phase) {
    case Phase::kForward:
      if (list.has_range(layer - 1)) list.read(Buffer::kMoveOut);
      if (list.has_range(layer)) list.write(Buffer::kHidden);
      break;
    case Phase::kBackward:
      if (list.has_range(layer)) list.read(Buffer::kDMove);
      if (list.has_range(layer - 1)) list.add(Buffer::kDHidden, Mode::kWrite, layer - 1);
      break;
    case Phase::kRecompute:
      return accesses_of_saved(list);
    case Phase::kWeights:
      break;
  }
}

bool move_occurs_in(const Op& op, const Placement& placement) {
  if (op.phase == Phase::kRecompute) return placement.moves_saved(op.group, op.layer, op.microbatch);
  return placement.moves_into(op.group, op.layer, op.microbatch, op.phase);
}

/// With a frozen embedding nobody wants the gradient of its rows.
bool has_work(const Op& op, const Placement& placement) {
  return op.layer > 0 || op.phase != Phase::kBackward || placement.needs_input_gradient(0);
}

/// Bytes of a token. What backward starts from travels as the devices have it: the row, expert ids (8 bytes
/// each) and routing weights (in fp32 or wider).
Bytes token_bytes(const WorkModel& model, const Op& op) {
  const Placement& p = model.placement();
  const Plan& plan = p.plan();
  const auto hidden = real(model.model().hidden);
  if (op.phase != Phase::kRecompute) return row_bytes(wire_of(op, plan), hidden);
  const double element = bytes_of(plan.dtype[idx(p.move_of(op).from.device(0))]);
  return hidden * element + (p.is_moe(op.layer) ? choice_bytes(model.model(), element) : 0);
}

std::vector<PortBytes> move_bytes(const WorkModel& model, const Op& op, std::span<const PlaceId> participants,
                                  const ExchangeLoad*) {
  std::vector<PortBytes> bytes(participants.size());
  const auto [senders, receivers] = model.placement().move_of(op);
  const Bytes per_token = token_bytes(model, op);
  for (const TokenRange from : senders) {
    for (const TokenRange to : receivers) {
      const i64 tokens = shared_tokens(from, to);
      if (tokens > 0) model.add(bytes, participants, from.device, to.device, real(tokens) * per_token);
    }
  }
  return bytes;
}

/// What backward starts from is sent as it is.
Bytes move_workspace(BufferSizes& sizes, const Op& op, DeviceId device) {
  if (op.phase == Phase::kRecompute) return 0;
  const auto [from, to] = sizes.placement().move_of(op);
  return real(from.of(device).tokens() + to.of(device).tokens()) * wire_row(sizes, op);
}

}  // namespace

const OpRow op_rows::move = {
    .phases = Phases::kForwardBackwardRecompute,
    .queue = {.forward = Queue::kMove,
              .backward = Queue::kMove,
              .by_name = Queue::kMove,
              .phase_backward = Queue::kMoveBack,
              .phase_recompute = Queue::kMoveSaved},
    .participants = Participants::kBothShares,
    .occurs = Occurs::kInMicrobatch,
    .has_layer = true,
    .has_microbatch = true,
    .of_inputs = true,
    .looks_back = true,
    .accesses = move_accesses,
    .occurs_in = move_occurs_in,
    .has_work = has_work,
    .bytes = move_bytes,
    .workspace = move_workspace,
};

}  // namespace hetermoe
