#pragma once
#include <vector>

#include "hetermoe/balance/balancers.h"

// EPLB, DeepSeek's load balancer: busy experts get further copies, and copies go to devices so that all have
// equal loads. Below, a slot is a place for one copy of an expert.
namespace hetermoe {

/// Items by falling weight, equal ones in their order.
std::vector<std::size_t> heaviest_first(const std::vector<double>& weights);

/// How the devices of a layer are laid out for EPLB, all counts equal: node by node, device by device.
struct EplbShape {
  i64 slots = 0;   ///< of all devices together, at least one per expert
  i64 groups = 1;  ///< of consecutive experts that should stay on one node
  i64 nodes = 1;
  i64 devices = 1;
  /// Groups divide experts, nodes divide devices, devices divide slots.
  bool fits(i64 num_experts) const;
};

/// The expert of each slot, as EPLB fills them: groups to nodes and copies within nodes where the nodes
/// divide the groups, else over all devices. weights: [experts] estimated loads, at least 0. The shape must
/// fit.
std::vector<ExpertId> eplb_slots(const std::vector<double>& weights, const EplbShape& shape);

/// A device for the balancer that knows that devices differ.
struct EplbDevice {
  double speed = 1;
  i64 slots = 0;
};
/// [devices] the experts of each device's slots, in the order in which they came: each copy, the heaviest
/// first, goes to the device that would end it earliest. There must be a slot for every expert. With equal
/// devices this is eplb_slots() with one group.
std::vector<std::vector<ExpertId>> weighted_eplb_slots(const std::vector<double>& weights,
                                                       const std::vector<EplbDevice>& devices);

/// Slots in proportion to speed, at least 0 and at most `most` on a device, `all` together or as many as
/// there is room for.
std::vector<i64> slots_by_speed(const std::vector<double>& speeds, const std::vector<i64>& most, i64 all);

/// Copies of experts on devices as owners: a device that has a second copy of an expert owns it once, with
/// both shares.
LayerOwners owners_of_slots(const std::vector<std::vector<ExpertId>>& slots,
                            const std::vector<DeviceId>& devices, i64 num_experts);
/// The same with shares by which the slowest device ends earliest, by the weights: dealt out exactly over the
/// devices that have an expert. Owners with nothing to do are left out, unless they may get copies later.
enum class IdleOwners { kDrop, kKeep };
LayerOwners split_owners(const LayerOwners& owners, const std::vector<double>& weights,
                         const std::vector<DeviceId>& devices, const std::vector<double>& speeds,
                         IdleOwners idle = IdleOwners::kDrop);
/// Slots that merging left without use.
i64 wasted_slots(const std::vector<std::vector<ExpertId>>& slots);

}  // namespace hetermoe
