#pragma once
#include <string>
#include <vector>

#include "hetermoe/plan/plan.h"

// The turns of a round-robin plan, as its shares have them. docs/roundpipe.md
namespace hetermoe {

struct PlanTurn {
  std::vector<i32> forward, backward;  ///< layers in the order in which a microbatch goes through them
  bool head = false;
  std::vector<DeviceId> devices;  ///< [round]
  std::vector<double> lengths;    ///< [round] of a microbatch there, by plan.turn_lengths
};

/// Turns of a round, in their order: a new one begins wherever shares of some microbatch change on the way
/// from the first layer to the head and back.
std::vector<PlanTurn> turns_of(const Plan& plan, const Group& group);

/// Microbatches of a round.
i64 round_of(const Plan& plan, const Group& group);

/// Faults that validate() finds in plan.turn_lengths.
std::vector<std::string> turn_faults(const Plan& plan);

inline constexpr i64 kStepsUntilAlike = 4;  ///< steps that overlap: later ones take equally long

/// When a microbatch is in a turn.
struct TurnTime {
  double begin = 0, end = 0;  ///< in the unit of plan.turn_lengths
};
/// [turn][microbatch] on devices that take their turns round by round and wait for nothing but microbatches,
/// in the last of `steps` steps without a barrier between them. Weights of a layer are replaced between its
/// last visit of a step, which begins as the device's turn before does, and its first of the next step.
std::vector<std::vector<TurnTime>> turn_times(const Plan& plan, const Group& group,
                                              const std::vector<PlanTurn>& turns, i64 steps = 1);

/// The work of a turn, such as "forward of layers 0 to 15" or "forward of layer 16, head, backward of layer
/// 16".
std::string turn_work(const PlanTurn& turn);

}  // namespace hetermoe
