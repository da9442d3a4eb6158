#include "hetermoe/base/index.h"
#include "hetermoe/ops/access_list.h"
#include "hetermoe/ops/buffer_sizes.h"

// The output of a layer goes from its shares to those of the next, its gradient back; and what backward
// starts from goes to where backward is. Where results of experts go to the next layer by themselves
// (Placement::joins_at), the residual stream goes there, with the owners of each token's choices.
namespace hetermoe {
namespace {

/// From the devices of forward to those of backward.
void accesses_of_saved(AccessList& list) {
  const Op& op = list.op;
  const bool gives = list.p.has_range(op.group, op.layer, op.microbatch, list.device);
  list.add(Buffer::kHidden, gives ? Mode::kRead : Mode::kWrite);
  if (list.is_moe()) list.add(Buffer::kRouting, gives ? Mode::kRead : Mode::kWrite);
}

/// Both sides have the buffers of the layer before.
void accesses_of_residual(AccessList& list) {
  const i32 before = list.op.layer - 1;
  const bool backward = list.op.phase == Phase::kBackward;
  const bool gives = list.has_range(backward ? list.op.layer : before);
  const Mode mode = gives ? Mode::kRead : Mode::kWrite;
  if (backward) return list.add(Buffer::kDHidden, mode, before);
  list.add(Buffer::kResidual, mode, before);
  if (list.p.is_moe(before)) list.add(Buffer::kRouting, mode, before);
  if (told_by_move(list.op, list.p, list.device)) list.add_all_chunks(Buffer::kLoad, Mode::kWrite, before);
}

void move_accesses(AccessList& list) {
  const i32 layer = list.op.layer;
  if (carries_residual(list.op, list.p)) return accesses_of_residual(list);
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
  return op.layer > 0 || op.phase != Phase::kBackward || placement.states().needs_input_gradient(0);
}

/// Bytes of a token. What backward starts from travels as the devices have it: the row, expert ids (8 bytes
/// each) and routing weights (in fp32 or wider).
Bytes token_bytes(const WorkModel& model, const Op& op) {
  const Placement& p = model.placement();
  const Plan& plan = p.plan();
  const auto hidden = real(model.model().hidden);
  if (op.phase != Phase::kRecompute)
    return row_bytes(wire_of(op, plan), hidden) + (carries_owners(op, p) ? owners_bytes(model.model()) : 0);
  const double element = bytes_of(plan.dtype[idx(p.move_of(op).from.device(0))]);
  return hidden * element + (p.is_moe(op.layer) ? choice_bytes(model.model(), element) : 0);
}

/// Rows of each segment of a source from each owner.
Bytes counts_bytes(const WorkModel& model, const Op& op, const TokenRange& source) {
  constexpr Bytes kCount = 4;
  const Placement& p = model.placement();
  if (!carries_owners(op, p)) return 0;
  i64 segments = 0;
  for (const TokenRange to : p.move_of(op).to) segments += shared_tokens(source, to) > 0 ? 1 : 0;
  return kCount * real(segments * p.plan().chunks) * real(p.num_owners(op.group, op.layer - 1));
}

std::vector<PortBytes> move_bytes(const WorkModel& model, const Op& op, std::span<const PlaceId> participants,
                                  const ExchangeLoad*) {
  std::vector<PortBytes> bytes(participants.size());
  const auto [senders, receivers] = model.placement().move_of(op);
  const Bytes per_token = token_bytes(model, op);
  for (const TokenRange from : senders) {
    const Bytes counts = counts_bytes(model, op, from);
    for (const TokenRange to : receivers) {
      const i64 tokens = shared_tokens(from, to);
      const bool told = counts > 0 && told_by_move(op, model.placement(), to.device);
      if (tokens > 0 || told)
        model.add(bytes, participants, from.device, to.device,
                  real(tokens) * per_token + (told ? counts : 0));
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
