#pragma once
#include <vector>

#include "hetermoe/planner/planner.h"

namespace hetermoe {

/// A cluster without some of its devices.
struct ClusterPart {
  Cluster cluster;
  std::vector<DeviceId> devices;  ///< [device of the part] its number in the whole
};
ClusterPart part_without(const Cluster& whole, const std::vector<DeviceId>& idle);

/// A plan on a part as one on all of it.
void number_back(Plan& plan, const ClusterPart& part, const PlanRequest& whole);
void number_back(Candidate& candidate, const ClusterPart& part, const PlanRequest& whole);

}  // namespace hetermoe
