#include "hetermoe/ops/access_list.h"

#include "hetermoe/base/index.h"

namespace hetermoe {

void accesses(const Op& op, DeviceId device, const Placement& placement, std::vector<Access>& out) {
  const OpRow& row = row_of(op.kind);
  if (row.accesses == nullptr) return;
  AccessList list(op, device, placement, out);
  row.accesses(list);
}

void AccessList::append(Buffer buffer, i32 first, i32 microbatch, i32 last, Mode mode) {
  out_.push_back({{buffer, shape_of(buffer), first, microbatch, last}, mode});
}

void AccessList::add_all_chunks(Buffer buffer, Mode mode, i32 layer) {
  for (i32 c = 0; c < p.plan().chunks; ++c) add(BufferKey::of_chunk(buffer, layer, op.microbatch, c), mode);
}

void AccessList::read_params(UnitPart part, i32 layer) {
  for (const i32 state : p.states().on(device, part, layer)) {
    const State& of = p.states()[idx(state)];
    if (of.transient()) add_of_state(Buffer::kWeights, Mode::kRead, state);
    if (!of.transient() || of.adapters_stay()) add_of_state(Buffer::kParams, Mode::kRead, state);
  }
  if (op.slot >= 0) add_slot(slot_part(part), Mode::kRead);
}

void AccessList::read_params() {
  const std::optional<UsedPart> used = used_part(op, p);
  if (used) read_params(used->part, used->layer);
}

void AccessList::add_grad(UnitPart part, i32 layer) {
  for (const i32 state : p.states().on(device, part, layer)) {
    if (p.states().trains(state)) add_of_state(Buffer::kGrad, Mode::kAdd, state);
  }
}

void AccessList::add_saved() {
  if (op.saved < 0) return;
  const SlotPart part = slot_part(*row_of(op.kind).saved);
  add(BufferKey::of_slot(Buffer::kSlot, part, op.saved),
      op.phase == Phase::kForward ? Mode::kWrite : Mode::kRead);
}

void AccessList::read_merged_input(i32 layer) {
  add(Buffer::kResidual, Mode::kRead, layer - 1);
  if (!p.is_moe(layer - 1)) return;
  add(Buffer::kRouting, Mode::kRead, layer - 1);
  add_all_chunks(Buffer::kReturned, Mode::kRead, layer - 1);
}

void AccessList::read_input(i32 layer) {
  if (p.merges_at(op.group, layer, op.microbatch)) {
    read_merged_input(layer);
    add(Buffer::kHidden, Mode::kWrite, layer);
  } else {
    add(Buffer::kHidden, Mode::kRead, layer);
  }
}

void AccessList::write_input_gradient(i32 layer) {
  if (!p.states().needs_input_gradient(layer)) return;
  if (moves_into(layer, Phase::kBackward) && !joins_at(layer)) {
    add(Buffer::kDMove, Mode::kWrite, layer);
  } else {
    add(Buffer::kDHidden, Mode::kWrite, layer - 1);
  }
}

void AccessList::read_tally() {
  if (p.tallies(op.group, op.layer)) read(Buffer::kTally);
}

void AccessList::read_guests() {
  if (!lends()) return;
  read(Buffer::kGuest);
  add_guest_turn(Mode::kRead);
}

}  // namespace hetermoe
