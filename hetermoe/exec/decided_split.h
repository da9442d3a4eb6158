#pragma once
#include <optional>
#include <vector>

#include "hetermoe/exec/layer_routing.h"
#include "hetermoe/routing/exchange_split.h"

namespace hetermoe {

class OpContext;

/// The devices of the copies in the exchanges of a layer and microbatch, if counts decide them.
struct DecidedSplit {
  std::vector<SourceCopies> copies;  ///< [chunks]
  std::vector<OwnerTable> own;       ///< [chunks] owners of this device's copies; empty where it is no source
  ExchangeLoad load;                 ///< `instances` and `guests` alone
  // Where there are guests:
  std::optional<LayerRouting> routing;  ///< owners with their guests
  std::vector<ExpertId> lent;           ///< to this device, in the order of their slots
  std::vector<i64> slot_of;             ///< [E] of this device's own experts and, behind them, of its guests
};

/// copies: [chunks] of a layer and microbatch. Equal copies are decided alike on all devices.
DecidedSplit decide_split(OpContext& d, i32 layer, i32 microbatch, std::vector<SourceCopies> copies);
/// The same by the choices that the step's input gives; empty where it gives none, or the layer's copies are
/// divided by shares. [layer * microbatches + microbatch]
std::vector<DecidedSplit> foreseen_splits(OpContext& d);

/// Experts of `from` that are lent to `to`, those that are trained first.
std::vector<ExpertId> lent_between(const OpContext& d, i32 layer, const DecidedSplit& split, DeviceId from,
                                   DeviceId to);

}  // namespace hetermoe
