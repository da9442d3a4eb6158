#include "hetermoe/schedule/residency.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/schedule/expected_ops.h"

namespace hetermoe {
std::vector<Op> stores_once(const Placement& placement, i32 state) {
  const State& s = placement.states()[idx(state)];
  std::vector<Op> ops;
  if (s.visits() || !s.trainable) return ops;
  for (const PlaceId home : s.homes) {
    const auto device = std::find_if(s.devices.begin(), s.devices.end(),
                                     [&](DeviceId d) { return placement.host_of(d) == home; });
    ops.push_back({.kind = OpKind::kStore, .state = state, .device = *device});
  }
  return ops;
}

std::vector<Op> fetches_once(const Placement& placement, i32 state) {
  const State& s = placement.states()[idx(state)];
  std::vector<Op> ops;
  if (s.visits() || !s.trainable || s.homes.empty()) return ops;
  for (const DeviceId device : s.devices)
    ops.push_back({.kind = OpKind::kFetch, .state = state, .device = device});
  return ops;
}

Residency::Residency(const Placement& placement) : p_(placement), saved_(placement) {
  const PlacedStates& states = placement.states();
  active_ = std::any_of(states.begin(), states.end(), [](const State& state) { return state.transient(); });
  if (!active_) return;
  i32 num_sets = 0;
  for (const State& state : states) num_sets = std::max(num_sets, state.gatherers + 1);
  visits_.resize(idx(placement.num_devices() + num_sets));
  for (auto& of_device : visits_) {
    for (std::size_t part = 0; part < of_device.size(); ++part) {
      const std::size_t slots = idx(num_slots(placement.plan(), static_cast<UnitPart>(part)));
      of_device[part].layers.assign(slots, kNobody);
      of_device[part].used.assign(slots, 0);
    }
  }
  due_.assign(states.size(), std::vector<bool>(idx(placement.num_devices()), false));
  adds_left_.assign(states.size(), std::vector<i64>(idx(placement.num_devices()), 0));
  if (std::ranges::any_of(states, &State::visits)) count_adds();
}

std::span<const i32> Residency::stored_after(const Op& op, DeviceId device) const {
  const std::optional<UsedPart> graded = graded_part(op, p_);
  if (!any_visits(device, graded)) return {};
  const std::span<const i32> states = p_.states().on(device, graded->part, graded->layer);
  return p_.states()[idx(states[0])].gathered() ? std::span<const i32>() : states;
}

void Residency::count_adds() {
  for (const auto& [op, device] : expected_ops(p_)) {
    if (device < 0 || !is_compute(op.kind)) continue;
    for (const i32 state : stored_after(op, device)) ++adds_left_[idx(state)][idx(device)];
  }
}

/// Gatherers have their visits together, a device those from its host.
Residency::Visits& Residency::visits(DeviceId device, const State& state) {
  return visits_[idx(state.gathered() ? p_.num_devices() + state.gatherers : device)][idx(state.part)];
}
std::vector<bool>::reference Residency::due(i32 state, DeviceId device) {
  const State& s = p_.states()[idx(state)];
  return due_[idx(state)][idx(s.gathered() ? s.devices[0] : device)];
}

/// The states of a part of a layer on a device all visit, or none does: they have one home.
bool Residency::any_visits(DeviceId device, const std::optional<UsedPart>& used) const {
  if (!used) return false;
  const std::span<const i32> states = p_.states().on(device, used->part, used->layer);
  return !states.empty() && p_.states()[idx(states[0])].transient();
}

void Residency::before(Op& op, DeviceId device, std::vector<Op>& out) {
  if (row_of(op.kind).occurs != Occurs::kInMicrobatch) return;
  saved_.before(op, device, out);
  if (!active_) return;
  const std::optional<UsedPart> used = used_part(op, p_), graded = graded_part(op, p_);
  if (any_visits(device, used)) admit(op, device, *used, out);
  if (!any_visits(device, graded)) return;
  for (const i32 state : p_.states().on(device, graded->part, graded->layer)) {
    if (p_.states().trains(state) && !p_.states()[idx(state)].adapters_stay()) due(state, device) = true;
  }
}

void Residency::after(const Op& op, DeviceId device, std::vector<Op>& out) {
  if (!active_ || !is_compute(op.kind)) return;
  for (const i32 state : stored_after(op, device)) {
    if (--adds_left_[idx(state)][idx(device)] == 0) store_due(state, device, out);
  }
}

std::size_t Residency::next_slot(Visits& visits, const State& state) {
  if (state.gathered())
    return idx(std::min_element(visits.used.begin(), visits.used.end()) - visits.used.begin());
  const std::size_t slot = idx(visits.next);
  visits.next = (visits.next + 1) % static_cast<i32>(visits.layers.size());
  return slot;
}

void Residency::admit(Op& op, DeviceId device, const UsedPart& used, std::vector<Op>& out) {
  const State& first = p_.states()[idx(p_.states().on(device, used.part, used.layer)[0])];
  Visits& visits = this->visits(device, first);
  const auto found = std::find(visits.layers.begin(), visits.layers.end(), used.layer);
  if (found != visits.layers.end()) {
    const std::ptrdiff_t slot = found - visits.layers.begin();
    op.slot = static_cast<std::int16_t>(first.first_slot + slot);
    visits.used[idx(slot)] = ++num_uses_;
    return;
  }
  const std::size_t slot = next_slot(visits, first);
  op.slot = static_cast<std::int16_t>(first.first_slot + static_cast<i32>(slot));
  i32& layer = visits.layers[slot];
  visits.used[slot] = ++num_uses_;
  if (layer != kNobody) {
    for (const i32 state : p_.states().on(device, used.part, layer)) store_due(state, device, out);
  }
  layer = used.layer;
  for (const i32 state : p_.states().on(device, used.part, layer)) {
    if (first.gathered())
      out.push_back({.kind = OpKind::kAllGather, .state = state, .slot = op.slot});
    else
      out.push_back({.kind = OpKind::kFetch, .state = state, .device = device, .slot = op.slot});
  }
}

/// Of a gathered state; -1 where its last visit has ended.
std::int16_t Residency::slot_of(i32 index) {
  const State& state = p_.states()[idx(index)];
  const std::vector<i32>& layers = visits(state.devices[0], state).layers;
  const auto found = std::find(layers.begin(), layers.end(), state.layer);
  return static_cast<std::int16_t>(found == layers.end() ? -1 : state.first_slot + (found - layers.begin()));
}

void Residency::store_due(i32 state, DeviceId device, std::vector<Op>& out) {
  if (!due(state, device)) return;
  due(state, device) = false;
  if (p_.states()[idx(state)].gathered())
    out.push_back({.kind = OpKind::kReduceScatter, .state = state, .slot = slot_of(state)});
  else
    out.push_back({.kind = OpKind::kStore, .state = state, .device = device});
}

void Residency::finish(i32 state, std::vector<Op>& out) {
  if (!active_) return;
  for (const DeviceId device : p_.states()[idx(state)].devices) store_due(state, device, out);
}

void Residency::finish_all(std::vector<Op>& out) {
  for (std::size_t s = 0; s < p_.states().size(); ++s) finish(static_cast<i32>(s), out);
}

VisitReplay replay_visits(const Placement& placement, const std::vector<std::pair<Op, DeviceId>>& computed) {
  VisitReplay replay;
  Residency residency(placement);
  for (auto [op, device] : computed) {
    op.slot = op.saved = -1;
    residency.before(op, device, replay.visits);
    replay.computed.push_back(op);
    residency.after(op, device, replay.visits);
  }
  residency.finish_all(replay.visits);
  return replay;
}

bool is_visit(const Op& op, const Placement& placement) {
  if (is_saved_copy(op)) return true;
  const auto num_states = static_cast<i32>(placement.states().size());
  if (op.state < 0 || op.state >= num_states) return false;
  const State& state = placement.states()[idx(op.state)];
  const Occurs occurs = row_of(op.kind).occurs;
  if (state.gathered()) return occurs == Occurs::kAfterUpdate || occurs == Occurs::kPerShardedState;
  return occurs == Occurs::kOfResidence && state.visits();
}

}  // namespace hetermoe
