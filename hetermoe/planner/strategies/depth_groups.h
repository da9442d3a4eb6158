#pragma once
#include <functional>

#include "hetermoe/cost/cost_model.h"
#include "hetermoe/planner/strategies/strategies.h"

// Plans of AF-Pipe (arXiv 2605.11005): devices with attention and devices with experts are cut in depth. With
// p groups of a role the i-th has layers i, i + p, i + 2p ..., so that it holds a p-th of the parameters, and
// microbatches go round. A station is the set of devices that compute one part of the same layers.
namespace hetermoe {

/// Devices, as positions in `speeds`, dealt to `groups` so that their speeds add up to sums as equal as
/// possible, the fastest first. Devices of one speed stay together in the order of the list.
std::vector<std::vector<std::size_t>> deal_devices(const std::vector<double>& speeds, i64 groups);

/// The plan of a request. make_part: of one station of either role. Throws ConfigError where a role has fewer
/// devices than groups, or the model fewer layers.
Plan make_depth_groups(const ModelConfig& model, const Cluster& cluster, const StrategyRequest& request,
                       const Roles& roles, const std::function<Plan(const StrategyRequest&)>& make_part);

/// How long the parts of a microbatch take under a cost model, by one microbatch alone in the simulator. The
/// attention part of the slowest layer takes 1.
ExpectedTimes expected_times(const Plan& plan, const ModelConfig& model, const Cluster& cluster,
                             const CostModel& cost);

/// Groups of devices with attention, and with experts, of a group of the plan.
struct DepthGroups {
  i64 attention = 0, experts = 0;
};
DepthGroups depth_groups_of(const Group& group);

}  // namespace hetermoe
