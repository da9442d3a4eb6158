#include "hetermoe/schedule/residency.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// An embedding and a head are one layer each: more slots would never be used.
i32 num_slots(const Plan& plan, UnitPart part) {
  switch (part) {
    case UnitPart::kAttention:
      return plan.slots.attention;
    case UnitPart::kExperts:
      return plan.slots.experts;
    case UnitPart::kEmbed:
    case UnitPart::kHead:
      break;
  }
  return 1;
}

}  // namespace

UsedPart used_part(const Op& op, bool tied) {
  switch (op.kind) {
    case OpKind::kEmbed:
      return {UnitPart::kEmbed, -1, op.phase == Phase::kForward};  // its gradient needs no weights
    case OpKind::kAttention:  // gradients of weights are products of what backward left
      return {UnitPart::kAttention, op.layer, op.phase != Phase::kWeights};
    case OpKind::kExperts:
      return {UnitPart::kExperts, op.layer, op.phase != Phase::kWeights};
    case OpKind::kHead:
      return {tied ? UnitPart::kEmbed : UnitPart::kHead, -1, true};
    case OpKind::kDispatch:
    case OpKind::kCombine:
    case OpKind::kMerge:
    case OpKind::kMove:
    case OpKind::kBalance:
    case OpKind::kReduce:
    case OpKind::kReduceScatter:
    case OpKind::kNorm:
    case OpKind::kUpdate:
    case OpKind::kPublish:
    case OpKind::kTake:
    case OpKind::kAllGather:
    case OpKind::kFetch:
    case OpKind::kStore:
    case OpKind::kMigrate:
    case OpKind::kTally:
      break;
  }
  return {};
}

UsedPart graded_part(const Op& op, const Placement& placement) {
  UsedPart graded = used_part(op, placement.tied());
  if (op.kind == OpKind::kHead) {
    graded.any = placement.options().backward;
  } else if (op.kind == OpKind::kEmbed) {
    graded.any = op.phase == Phase::kBackward;
  } else if (graded.layer >= 0) {  // attention parts and experts
    const bool after = placement.leaves_weights(op.kind, op.layer);
    graded.any = op.phase == (after ? Phase::kWeights : Phase::kBackward);
  }
  return graded;
}

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
  const std::vector<State>& states = placement.states();
  active_ = std::any_of(states.begin(), states.end(), [](const State& state) { return state.visits(); });
  if (!active_) return;
  visits_.resize(idx(placement.num_devices()));
  for (auto& of_device : visits_) {
    for (std::size_t part = 0; part < of_device.size(); ++part)
      of_device[part].layers.assign(idx(num_slots(placement.plan(), static_cast<UnitPart>(part))), kNobody);
  }
  due_.assign(states.size(), std::vector<bool>(idx(placement.num_devices()), false));
}

Residency::Visits& Residency::visits(DeviceId device, UnitPart part) {
  return visits_[idx(device)][idx(part)];
}

/// The states of a part of a layer on a device all visit, or none does: they have one home.
bool Residency::any_visits(DeviceId device, const UsedPart& used) const {
  const std::span<const i32> states = p_.states_on(device, used.part, used.layer);
  return used.any && !states.empty() && p_.states()[idx(states[0])].visits();
}

void Residency::before(Op& op, DeviceId device, std::vector<Op>& out) {
  if (!is_compute(op.kind) || op.kind == OpKind::kUpdate) return;
  saved_.before(op, device, out);
  if (!active_) return;
  const UsedPart used = used_part(op, p_.tied()), graded = graded_part(op, p_);
  if (any_visits(device, used)) admit(op, device, used, out);
  if (!any_visits(device, graded)) return;
  for (const i32 state : p_.states_on(device, graded.part, graded.layer)) {
    if (p_.trains(state)) due_[idx(state)][idx(device)] = true;
  }
}

void Residency::admit(Op& op, DeviceId device, const UsedPart& used, std::vector<Op>& out) {
  Visits& visits = this->visits(device, used.part);
  const auto found = std::find(visits.layers.begin(), visits.layers.end(), used.layer);
  if (found != visits.layers.end()) {
    op.slot = static_cast<std::int16_t>(found - visits.layers.begin());
    return;
  }
  op.slot = static_cast<std::int16_t>(visits.next);
  i32& layer = visits.layers[idx(visits.next)];
  visits.next = (visits.next + 1) % static_cast<i32>(visits.layers.size());
  if (layer != kNobody) {
    for (const i32 state : p_.states_on(device, used.part, layer)) store_due(state, device, out);
  }
  layer = used.layer;
  for (const i32 state : p_.states_on(device, used.part, layer))
    out.push_back({.kind = OpKind::kFetch, .state = state, .device = device, .slot = op.slot});
}

void Residency::store_due(i32 state, DeviceId device, std::vector<Op>& out) {
  if (!due_[idx(state)][idx(device)]) return;
  due_[idx(state)][idx(device)] = false;
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
  }
  residency.finish_all(replay.visits);
  return replay;
}

bool is_visit(const Op& op, const Placement& placement) {
  if (is_saved_copy(op)) return true;
  const auto num_states = static_cast<i32>(placement.states().size());
  return traits(op.kind).occurs == Occurs::kOfResidence && op.state >= 0 && op.state < num_states &&
         placement.states()[idx(op.state)].visits();
}

}  // namespace hetermoe
