#pragma once
#include <vector>

#include "hetermoe/base/types.h"
#include "hetermoe/planner/strategies/round_clock.h"

// How round-robin pipelines cut a model into turns: forward turns, one fused turn, backward turns.
// RoundPipe (arXiv 2604.27085).
namespace hetermoe {

/// Seconds of a microbatch on one device; the head is the last entry of each.
struct LayerTimes {
  std::vector<double> forward;   ///< [layers + 1] that of the head is not looked at
  std::vector<double> backward;  ///< [layers + 1] with the forward pass made anew; the head's both passes
  bool operator==(const LayerTimes&) const = default;
};

struct TurnTimes {
  std::vector<double> forward;  ///< as above, of the mean device: by these the model is cut
  std::vector<double> backward;
  Seconds hop = 0;                          ///< from the device of a turn to that of the next
  std::vector<LayerTimes> of_devices = {};  ///< [device]; empty = all alike
  /// [layers + 1] to fetch the weights from the host while all devices do; empty = nothing is fetched
  std::vector<double> fetch = {};
};

struct TurnSplit {
  std::vector<i64> forward = {};      ///< [turn] layers, from the first layer on
  i64 fused = 0;                      ///< last entries, the head among them: forward and backward in one turn
  std::vector<i64> backward = {};     ///< [turn] layers, from the last that is not fused down
  Seconds longest = 0;                ///< turn
  std::vector<Seconds> lengths = {};  ///< [turn] of a microbatch
  Seconds cost = 0;                   ///< device-seconds of a step: busy and idle ones of all devices

  i64 num_turns() const { return static_cast<i64>(forward.size() + 1 + backward.size()); }
};

/// The cut of least cost (microbatches * max(turns, devices) + devices * (devices - 1)) * longest turn; of
/// equal ones that with the shortest turns. Exact. Both lists have one length from 1 on.
TurnSplit split_turns(const TurnTimes& times, i64 devices, i64 microbatches);

/// The request for a step of round-robin turns.
struct RoundsRequest {
  i64 devices = 1, microbatches = 1;
  i64 round = 0;       ///< microbatches of a round; 0 = what takes least time
  bool drains = true;  ///< false: a step begins while the last turns of the one before it still run
};

struct Rounds {
  TurnSplit split;
  i64 round = 0;                ///< microbatches of a round, of the last one the rest; 0 = all
  Seconds step = 0;             ///< from one step to the next
  std::vector<i64> dealt = {};  ///< [round * turns + turn] number of its device; empty = one after another
  std::vector<std::vector<Seconds>> lengths = {};  ///< [device][turn]; empty = split.lengths on each
  TurnFetches fetches = {};
};

/// Cuts and rounds whose steps take least time, the fastest first. For each number of turns there is the cut
/// with the shortest turns, without and with a limit of layers in a turn. There are also a few cuts with the
/// most equal turns. Rounds have each length that is worth a look. Each turn goes to the next device in turn,
/// or to the device on which it ends earliest (of equal ones the next in turn), whichever makes the step
/// shorter. A device takes its turns in order; a microbatch is `hop` later in the next one.
std::vector<Rounds> ranked_rounds(const TurnTimes& times, const RoundsRequest& request);

/// Share of the devices' time that a round-robin step of equal turns leaves idle. With rounds of fewer
/// microbatches than there are devices, turns wait for the ones before them.
double idle_share(i64 devices, i64 turns, i64 microbatches, i64 round);

}  // namespace hetermoe
