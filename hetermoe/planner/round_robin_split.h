#pragma once
#include <vector>

#include "hetermoe/base/types.h"

// How round-robin pipelines cut a model into turns: forward turns, one fused turn, backward turns.
// RoundPipe (arXiv 2604.27085).
namespace hetermoe {

/// Seconds of a microbatch; the head is the last entry of each.
struct TurnTimes {
  std::vector<double> forward;   ///< [layers + 1] that of the head is not looked at
  std::vector<double> backward;  ///< [layers + 1] with the forward pass made anew; the head's both passes
};

struct TurnSplit {
  std::vector<i64> forward;   ///< [turn] layers, from the first layer on
  i64 fused = 0;              ///< last entries, the head among them: forward and backward in one turn
  std::vector<i64> backward;  ///< [turn] layers, from the last that is not fused down
  Seconds longest = 0;        ///< turn
  Seconds cost = 0;           ///< device-seconds of a step: busy and idle ones of all devices

  i64 num_turns() const { return static_cast<i64>(forward.size() + 1 + backward.size()); }
};

/// The cut of least cost (microbatches * max(turns, devices) + devices * (devices - 1)) * longest turn; of
/// equal ones that with the shortest turns. Exact. Both lists have one length from 1 on.
TurnSplit split_turns(const TurnTimes& times, i64 devices, i64 microbatches);

/// Share of the devices' time that a round-robin step of equal turns leaves idle. With rounds of fewer
/// microbatches than there are devices, turns wait for the ones before them.
double idle_share(i64 devices, i64 turns, i64 microbatches, i64 round);

}  // namespace hetermoe
