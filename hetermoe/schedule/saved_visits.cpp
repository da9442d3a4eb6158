#include "hetermoe/schedule/saved_visits.h"

#include <algorithm>

namespace hetermoe {

SavedVisits::SavedVisits(const Placement& placement) : p_(placement) {
  bool saves = false;
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    for (i32 l = 0; l < placement.num_layers(); ++l) saves = saves || placement.saves_inputs(g, l);
  }
  if (!saves) return;
  slots_.resize(idx(placement.num_devices()));
  for (Device& device : slots_) {
    for (std::vector<Slot>& slots : device.slots) slots.resize(idx(placement.plan().slots.saved));
  }
}

std::optional<SavedVisits::Piece> SavedVisits::piece_of(const Op& op) const {
  const OpRow& row = row_of(op.kind);
  const std::optional<SavedPart> part = row.saved;
  if (op.phase == Phase::kBackward && !row.saved_in_backward) return {};
  if (part == SavedPart::kInputs && op.phase != Phase::kWeights && p_.saves_inputs(op.group, op.layer))
    return Piece{op.group, op.layer, op.microbatch, 0};
  if (part == SavedPart::kRows && p_.saves_rows(op.group, op.layer))
    return Piece{op.group, op.layer, op.microbatch, op.chunk + 1};
  return {};
}

bool SavedVisits::uses_last(const Op& op) const {
  const bool weights_last =
      row_of(op.kind).saved == SavedPart::kRows && p_.leaves_weights(UnitPart::kExperts, op.layer);
  return op.phase == (weights_last ? Phase::kWeights : Phase::kBackward);
}

void SavedVisits::before(Op& op, DeviceId device, std::vector<Op>& out) {
  if (!active() || device >= p_.num_devices()) return;
  send_off(device, out);
  const std::optional<Piece> piece = piece_of(op);
  if (!piece) return;
  const bool roams = p_.roams(op.group, op.layer, op.microbatch);
  Device& of = slots_[idx(device)];
  std::vector<Slot>& slots = of.slots[piece->chunk > 0 ? 1 : 0];
  auto slot =
      std::find_if(slots.begin(), slots.end(), [&](const Slot& s) { return s.needed && s.piece == *piece; });
  if (slot == slots.end()) {
    slot = slots.begin() + (&make_room(of, device, *piece, out) - slots.data());
    if (op.phase != Phase::kForward) {
      const Op fetch = copy(OpKind::kFetch, *piece, device, static_cast<std::size_t>(slot - slots.begin()));
      if (roams) send_off(maker_of(fetch, p_), out);
      out.push_back(fetch);
    }
  }
  slot->used = ++now_;
  slot->needed = !uses_last(op);
  slot->leaves = roams && op.phase == Phase::kForward;
  op.saved = static_cast<std::int16_t>(slot - slots.begin());
}

void SavedVisits::send_off(DeviceId device, std::vector<Op>& out) {
  for (std::vector<Slot>& slots : slots_[idx(device)].slots) {
    for (std::size_t s = 0; s < slots.size(); ++s) {
      if (!slots[s].leaves) continue;
      out.push_back(copy(OpKind::kStore, slots[s].piece, device, s));
      slots[s].leaves = slots[s].needed = false;
    }
  }
}

/// In the slot that has been of no use for longest, else in that of the piece which has been there for
/// longest. What the host has need not go there again.
SavedVisits::Slot& SavedVisits::make_room(Device& of, DeviceId device, const Piece& piece,
                                          std::vector<Op>& out) {
  std::vector<Slot>& slots = of.slots[piece.chunk > 0 ? 1 : 0];
  const auto worse = [](const Slot& a, const Slot& b) {
    if (a.needed != b.needed) return b.needed;
    return a.needed ? a.entered < b.entered : a.used < b.used;
  };
  Slot& slot = *std::min_element(slots.begin(), slots.end(), worse);
  if (slot.needed && of.stored.insert(slot.piece).second)
    out.push_back(copy(OpKind::kStore, slot.piece, device, static_cast<std::size_t>(&slot - slots.data())));
  slot = {.piece = piece, .needed = true, .leaves = false, .entered = ++now_};
  return slot;
}

Op SavedVisits::copy(OpKind kind, const Piece& piece, DeviceId device, std::size_t slot) {
  return {.kind = kind,
          .chunk = static_cast<std::int16_t>(piece.chunk),
          .group = static_cast<std::int16_t>(piece.group),
          .layer = piece.layer,
          .microbatch = piece.microbatch,
          .device = device,
          .slot = static_cast<std::int16_t>(slot)};
}

}  // namespace hetermoe
