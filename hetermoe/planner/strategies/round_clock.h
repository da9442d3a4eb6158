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

/// Fetches from the host that a device needs for a turn.
struct TurnFetches {
  std::vector<Seconds> seconds = {};        ///< [turn] until its weights are there; empty = 0
  std::vector<std::size_t> last_uses = {};  ///< [turn] the last one that fetches weights of it, maybe itself
};

/// Devices that take turns of a step, round after round. Turn i of a round begins when its device has ended
/// what it had before and the first microbatch is there from turn i - 1. Steps follow each other without a
/// barrier. Weights of a turn come from the host while the device has the turn before; a step's are there
/// when the step before has fetched its own for the last time.
class RoundClock {
 public:
  /// `lengths`: [device][turn] seconds of a microbatch; `hop`: seconds from one turn to the next.
  RoundClock(std::vector<std::vector<Seconds>> lengths, Seconds hop, TurnFetches fetches = {});

  /// Deals the turns of the next step to devices and lets it run: [round * turns + turn] number of the
  /// device.
  std::vector<i64> deal(Dispatch dispatch, i64 turns, i64 microbatches, i64 round);
  /// The next step, dealt like that; when its last microbatch leaves its last turn.
  Seconds run(const std::vector<i64>& dealt, i64 microbatches, i64 round);
  /// When the last microbatch of the step that ran last left its last turn.
  Seconds end() const { return end_; }

 private:
  void begin_step();
  Seconds fetched_at(std::size_t device, std::size_t turn) const;
  Seconds start_of(std::size_t device, std::size_t turn) const;
  Seconds end_of(std::size_t device, std::size_t turn) const;
  void take(std::size_t device, std::size_t turn);
  std::size_t earliest(std::size_t turn, std::size_t next) const;

  std::vector<std::vector<Seconds>> lengths_;
  Seconds hop_, end_ = 0;
  TurnFetches fetches_;
  std::vector<Seconds> free_;       // [device] when it has ended what it began
  std::vector<Seconds> fetched_;    // [device] when the weights of its last turn were there
  std::vector<Seconds> began_;      // [device] when that began: then there is room for the next turn's
  std::vector<Seconds> ready_;      // [microbatch of the round] when it is there for the next turn
  std::vector<Seconds> used_;       // [turn] when this step has fetched its weights for the last time so far
  std::vector<Seconds> published_;  // [turn] when the host has this step's weights
};

}  // namespace hetermoe
