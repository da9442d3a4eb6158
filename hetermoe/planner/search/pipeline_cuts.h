#pragma once
#include <vector>

#include "hetermoe/planner/estimate/stage_cost.h"

namespace hetermoe {

using Stages = std::vector<StageDevices>;

/// Equal groups of devices whose layers are cut into stages. Devices that no group takes stay idle, or form
/// one more group.
struct PipelineCut {
  i64 groups = 1;
  std::vector<i64> span;  ///< [class] devices from one group to the next
  Stages stages;          ///< of each group, on no more than these
  std::vector<i64> rest;  ///< [class] devices of the group more; empty = there is none
};

/// Every number of stages that devices and layers allow, on each set of classes in either order, in so many
/// groups as have room. Sets of classes that cannot take less than `most`, whatever they do, are left out.
std::vector<PipelineCut> pipeline_cuts(const Rates& rates, Seconds most);
/// Cuts of one group of so many devices of each class.
std::vector<Stages> stage_cuts(const Rates& rates, const std::vector<i64>& devices);

}  // namespace hetermoe
