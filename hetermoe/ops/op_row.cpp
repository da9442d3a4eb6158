#include "hetermoe/ops/op_row.h"

#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/ops/exchange.h"

namespace hetermoe {

bool has_phase(OpKind kind, Phase phase) {
  switch (row_of(kind).phases) {
    case Phases::kNone:
    case Phases::kForward:
      return phase == Phase::kForward;
    case Phases::kForwardBackward:
      return phase == Phase::kForward || phase == Phase::kBackward;
    case Phases::kForwardBackwardRecompute:
      return phase != Phase::kWeights;
    case Phases::kAll:
      return true;
  }
  return false;
}

Queue queue_of_op(const Op& op, QueueBinding binding) {
  const QueueRule& rule = row_of(op.kind).queue;
  // Weights that visit must not wait for gradients of the layers before them.
  const bool gathers_visit = op.slot >= 0 && !row_of(op.kind).carries_gradients && !is_host_copy(op);
  if (gathers_visit) return Queue::kToDevice;
  switch (binding) {
    case QueueBinding::kDirection:
      return op.phase == Phase::kBackward ? rule.backward : rule.forward;
    case QueueBinding::kPhase:
      if (op.phase == Phase::kBackward) return rule.phase_backward;
      return op.phase == Phase::kRecompute ? rule.phase_recompute : rule.forward;
    case QueueBinding::kName:
      return rule.by_name;
  }
  HM_CHECK(false, "queue binding {}", static_cast<i32>(binding));
  return Queue::kCompute;
}

i32 load_chunk(const Op& op) {
  if (is_saved_copy(op)) return op.chunk - 1;
  if (row_of(op.kind).of_guests) return 0;  // guests are those of all chunks
  return needs_load(op.kind) ? op.chunk : -1;
}

i32 stage_of(const Op& op, i32 num_layers) {
  switch (row_of(op.kind).stage) {
    case Stage::kEmbed:
      return -1;
    case Stage::kLayer:
      return op.layer;
    case Stage::kLayerBefore:
      return op.layer - 1;
    case Stage::kHead:
      return num_layers;
    case Stage::kNone:
      break;
  }
  HM_CHECK(false, "{} follows no shares", to_string(op));
  return -1;
}

std::vector<DeviceId> participants(const Op& op, const Placement& placement) {
  std::set<DeviceId> all;
  const auto add = [&](const TokenRanges& ranges) {
    for (const TokenRange range : ranges) all.insert(range.device);
  };
  switch (row_of(op.kind).participants) {
    case Participants::kOneDevice:
    case Participants::kMovers:
      HM_CHECK(false, "{} is not a transfer of a step", to_string(op));
      break;
    case Participants::kExchange:
      return Exchange(op, placement).participants();
    case Participants::kOwners:
      return placement.owners(op.group, op.layer);
    case Participants::kStateDevices:
      return placement.states()[idx(op.state)].reducers();
    case Participants::kWithHost:
      return {op.device, placement.host_of(op.device)};
    case Participants::kBothShares:
      add(placement.move_of(op).from);
      add(placement.move_of(op).to);
      break;
    case Participants::kTeam:
      for (const TeamMember& member : placement.team_of(op).members) all.insert(member.device);
      break;
    case Participants::kBalanceSet:
      for (const MicrobatchRef& member : placement.balance_sets().with(op.group, op.microbatch)) {
        for (i32 l = 0; l < placement.num_layers(); ++l) {
          if (!placement.is_moe(l)) continue;
          add(placement.ranges(member.group, l, member.microbatch));
          if (placement.options().backward)
            add(placement.ranges(member.group, l, member.microbatch, Phase::kBackward));
        }
      }
      break;
    case Participants::kStateHolders:
      for (PlaceId place = 0; place < placement.num_places(); ++place) {
        if (!placement.states().on(place).empty()) all.insert(place);
      }
      break;
  }
  return {all.begin(), all.end()};
}

bool in_step(const Op& op, const Placement& placement) {
  const OpRow& row = row_of(op.kind);
  if (is_saved_copy(op)) return true;
  // Frozen weights visit, too.
  if (row.has_state)
    return placement.states().trains(op.state) ||
           (!row.carries_gradients && placement.states()[idx(op.state)].transient());
  return row.has_work == nullptr || row.has_work(op, placement);
}

bool tells_sizes(const Op& op, const Placement& placement) {
  if (!row_of(op.kind).carries_routing_weights || op.phase == Phase::kBackward) return false;
  return op.phase == Phase::kForward || placement.roams(op.group, op.layer, op.microbatch);
}

DeviceId maker_of(const Op& copy, const Placement& placement) {
  if (!row_of(copy.kind).from_host) return copy.device;
  return placement.maker_of(copy.group, copy.layer, copy.microbatch, copy.device);
}

i32 saved_piece(const Op& copy, const Placement& placement) {
  return placement.saved_piece(maker_of(copy, placement), copy.chunk);
}

std::optional<UsedPart> used_part(const Op& op, const Placement& placement) {
  const OpRow& row = row_of(op.kind);
  return row.uses == nullptr ? std::nullopt : row.uses(op, placement);
}

std::optional<UsedPart> graded_part(const Op& op, const Placement& placement) {
  const OpRow& row = row_of(op.kind);
  return row.grades == nullptr ? std::nullopt : row.grades(op, placement);
}

std::string to_string(const Op& op) {
  std::string text = name_of(op.kind);
  if (row_of(op.kind).phases != Phases::kNone) text += "." + name_of(op.phase);
  if (op.layer >= 0) text += fmt::format(" l{}", op.layer);
  if (op.microbatch >= 0) text += fmt::format(" m{}", op.microbatch);
  if (op.chunk > 0) text += fmt::format(" c{}", op.chunk);
  if (op.group > 0) text += fmt::format(" g{}", op.group);
  if (op.team >= 0) text += fmt::format(" t{}", op.team);
  if (op.state >= 0) text += fmt::format(" s{}", op.state);
  if (op.device >= 0) text += fmt::format(" d{}", op.device);
  return text;
}

}  // namespace hetermoe
