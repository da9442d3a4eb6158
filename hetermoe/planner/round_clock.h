#pragma once
#include <vector>

#include "hetermoe/base/types.h"

// Which device takes which turn of a round-robin pipeline, and when a step ends.
namespace hetermoe {

/// Times that differ by less are equal: sums of the same numbers in another order.
inline constexpr double kRounding = 1e-12;

enum class Dispatch {
  kInTurn,       ///< the device after that of the turn before
  kEarliestEnd,  ///< the device on which the turn ends first; of equal ones that after the turn before
};

/// Devices that take turns of a step, round after round. Turn i of a round begins when its device has ended
/// what it had before and the first microbatch is there from turn i - 1. Steps follow each other without a
/// barrier. Weights of a turn come from the host while the device has the turn before.
class RoundClock {
 public:
  /// `lengths`: [device][turn] seconds of a microbatch; `hop`: seconds from one turn to the next; `fetches`:
  /// [turn] seconds until its weights are there, empty = 0.
  RoundClock(std::vector<std::vector<Seconds>> lengths, Seconds hop, std::vector<Seconds> fetches = {});

  /// Deals the turns of a step to devices and lets the step run: [round * turns + turn] number of the device.
  std::vector<i64> deal(Dispatch dispatch, i64 turns, i64 microbatches, i64 round);
  /// The next step, dealt like that; when its last microbatch leaves its last turn.
  Seconds run(const std::vector<i64>& dealt, i64 microbatches, i64 round);
  /// When the last microbatch of the step that ran last left its last turn.
  Seconds end() const { return end_; }

 private:
  Seconds start_of(std::size_t device, std::size_t turn) const;
  Seconds end_of(std::size_t device, std::size_t turn) const;
  void take(std::size_t device, std::size_t turn);
  std::size_t earliest(std::size_t turn, std::size_t next) const;

  std::vector<std::vector<Seconds>> lengths_;
  Seconds hop_, end_ = 0;
  std::vector<Seconds> fetches_;
  std::vector<Seconds> free_;     // [device] when it has ended what it began
  std::vector<Seconds> fetched_;  // [device] when the weights of its last turn were there
  std::vector<Seconds> began_;    // [device] when that began: then there is room for the next turn's
  std::vector<Seconds> ready_;    // [microbatch of the round] when it is there for the next turn
};

}  // namespace hetermoe
