#pragma once
#include <utility>
#include <vector>

#include "hetermoe/planner/estimate/rates.h"

namespace hetermoe {

/// Pipelines with a stage on each node, whatever devices it has, where some node has several classes. Inside
/// a stage attention is on the classes that are best at it, experts where the last device then finishes
/// first. Nodes of a kind may make several groups. Each with a lower bound of its step, the lowest first;
/// none at or above `most`. Empty for more nodes or devices than a server room of mixed machines has.
std::vector<std::pair<Seconds, Plan>> node_pipelines(const Rates& rates, Seconds most);

}  // namespace hetermoe
