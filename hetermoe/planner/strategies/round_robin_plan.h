#pragma once
#include "hetermoe/planner/strategies/round_robin_split.h"
#include "hetermoe/planner/strategies/strategies.h"

namespace hetermoe {

/// Expected seconds of a microbatch of so many sequences on the devices of a group for each layer. The
/// plan says of each layer how it recomputes.
TurnTimes expected_turn_times(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                              double sequences, const TrainedShares& trained = {});

/// Gives the turns of `rounds` to the devices of the plan's only group. Experts are computed where their
/// tokens are; all but the fused layers recompute.
void deal_turns(Plan& plan, const Rounds& rounds);

/// A round-robin plan for devices of one node.
Plan make_roundpipe(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request,
                    Plan base);

/// A warning, in words, if rounds have fewer microbatches than there are devices, and rounds of that many
/// would leave less of the devices' time idle. Empty = none.
std::string round_warning(const Plan& plan);

}  // namespace hetermoe
