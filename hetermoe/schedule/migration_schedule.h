#pragma once
#include <span>
#include <vector>

#include "hetermoe/plan/migration.h"
#include "hetermoe/schedule/schedule.h"

namespace hetermoe {

/// The moves between two plans as a schedule of its own, which runs between two steps: an op `migrate` for
/// each layer with moves (layer -1 the embedding, num_layers the head), a transfer on queue `move` among
/// givers and takers. It touches no buffer of a step and is no op of one.
struct Migration {
  Schedule schedule;
  std::vector<UnitMove> moves;  ///< in the order of units

  /// Moves of one migrate op.
  std::span<const UnitMove> moves_of(const Op& op) const;
};

/// `moves` in the order of units, as moves_between() lists them.
Migration make_migration(std::vector<UnitMove> moves, i32 num_devices);

}  // namespace hetermoe
