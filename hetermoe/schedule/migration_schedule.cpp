#include "hetermoe/schedule/migration_schedule.h"

#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"

namespace hetermoe {

std::span<const UnitMove> Migration::moves_of(const Op& op) const {
  const auto before = [](const UnitMove& move, i32 layer) { return move.unit.layer < layer; };
  const auto after = [](i32 layer, const UnitMove& move) { return layer < move.unit.layer; };
  const auto first = std::lower_bound(moves.begin(), moves.end(), op.layer, before);
  return {first, std::upper_bound(first, moves.end(), op.layer, after)};
}

Migration make_migration(std::vector<UnitMove> moves, i32 num_devices) {
  Migration out;
  out.moves = std::move(moves);
  Schedule& schedule = out.schedule;
  schedule.num_devices = num_devices;
  for (std::size_t first = 0, last = 0; first < out.moves.size(); first = last) {
    const i32 layer = out.moves[first].unit.layer;
    std::set<DeviceId> participants;
    for (; last < out.moves.size() && out.moves[last].unit.layer == layer; ++last) {
      participants.insert(out.moves[last].from);
      participants.insert(out.moves[last].to);
    }
    HM_CHECK(schedule.ops.empty() || schedule.ops.back().layer < layer,
             "moves are not in the order of units");
    schedule.ops.push_back({.kind = OpKind::kMigrate, .layer = layer});
    for (const DeviceId device : participants) schedule.lanes.push_back(lane_of(device, Queue::kMove));
    schedule.lane_begin.push_back(static_cast<i64>(schedule.lanes.size()));
    schedule.dep_begin.push_back(0);
  }
  return out;
}

}  // namespace hetermoe
