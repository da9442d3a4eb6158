#pragma once
#include <optional>
#include <vector>

#include "hetermoe/plan/plan.h"

// Small changes of a plan: work goes from one device of a group to another. All are pure functions.
namespace hetermoe {

/// Work of `from`, a device of group `group`, goes to `to`: a device of the same group, or of none.
struct Move {
  std::size_t group = 0;
  DeviceId from = 0, to = 0;
};

/// What plans move and how: the plan, and for each group the first one that is arranged alike
/// (alike_groups() of cost/fold.h). Groups arranged alike change alike, unless `to` is of no group.
struct MoveContext {
  const Plan& plan;
  const std::vector<i32>& alike;
};

/// All of these return nothing where the move does not apply.
/// Leaves `from` out: `to` takes all that it does. Not in a pipeline.
std::optional<Plan> retire_device(const MoveContext& context, const Move& move);
/// One expert of one layer.
std::optional<Plan> give_expert(const MoveContext& context, const Move& move, i64 layer);
/// One expert of every layer in which `from` has one.
std::optional<Plan> give_column(const MoveContext& context, const Move& move);
/// An expert of `layer` goes to `to` and one of `other` comes back: as many on each, at another time.
std::optional<Plan> swap_layers(const MoveContext& context, const Move& move, i64 layer, i64 other);
/// One sequence of every microbatch; `from` must have one in each. Not in a pipeline.
std::optional<Plan> give_sequence(const MoveContext& context, const Move& move);

/// Devices of no group, ascending.
std::vector<DeviceId> free_devices(const Plan& plan);

/// Who could give work to whom in a group: in a small one everyone to everyone, else the busiest to the least
/// busy. `free` devices take. busy: [device] share of the step.
std::vector<Move> exchanges(const Plan& plan, std::size_t group, const std::vector<double>& busy,
                            const std::vector<DeviceId>& free);

}  // namespace hetermoe
