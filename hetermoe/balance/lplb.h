#pragma once
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/balance/balancers.h"

// LPLB, DeepSeek's balancer for training: busy experts have one copy each, on devices that a fixed graph
// names, and every exchange is divided over the two.
namespace hetermoe {

/// Column j holds for each device of a run of devices (a group) from which it has a copy of an expert.
using TopologyColumns = std::vector<std::vector<i32>>;

/// name: cube (8 devices), hypercube (16), ring and torus (all), torus:MxN; or columns as JSON, as
/// [[1,2,3,0]]. Empty = torus where the number of devices has two divisors above 2, else ring. Throws
/// ConfigError for an unknown name, a size that does not divide num_devices, a column that is no permutation
/// or that gives a device a copy of its own expert.
TopologyColumns topology_columns(const std::string& name, i64 num_devices);

/// [experts] owners, the first first. experts: [devices] those of each device, busiest first. On each device
/// rows * columns experts get a second owner: the device that copies in a column.
std::vector<std::vector<i32>> topology_hosts(const std::vector<std::vector<ExpertId>>& experts,
                                             const TopologyColumns& columns, i64 rows);

}  // namespace hetermoe
