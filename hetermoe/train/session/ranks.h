#pragma once
#include <span>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/plan/plan.h"

// Which rank runs which device of the cluster. Launchers number their processes as they like, so on GPUs the
// ranks are asked what they really have.
namespace hetermoe {

/// Devices with a part of the plan. A strategy may list others: round robin leaves slow ones without a turn.
std::vector<DeviceId> working_devices(const Plan& plan);

/// The devices that a plan uses over the ranks: [num_devices], -1 = the plan leaves the device idle. A rank
/// for each node where there are as many, else contiguous runs as equal as possible. Throws ConfigError when
/// there are more ranks than used devices.
std::vector<i32> ranks_of_devices(const Plan& plan, const Cluster& cluster, i32 num_ranks);
/// The same for a run that goes from plan to plan: a device stays with its rank, so those that any of the
/// plans uses are spread. Throws ConfigError, too, when some plan leaves a rank without a device.
std::vector<i32> ranks_of_devices(std::span<const Plan* const> plans, const Cluster& cluster, i32 num_ranks);

/// The GPU of a rank, as its driver describes it.
struct RankGpu {
  std::string host, name;
  i32 capability = 0;  ///< 86 for 8.6
  Bytes memory = 0;
};

/// A device of the cluster that needs a rank.
struct WantedGpu {
  DeviceId device = 0;
  NodeId node = 0;
  std::string name;    ///< A40#2
  i32 capability = 0;  ///< 0 = the type does not say
  Bytes memory = 0;
};

/// The rank of each wanted device, of as many ranks or more. Rank i keeps device i if it has such a GPU; else
/// ranks are permuted, those of a node onto one host if that can be. A GPU with more memory than the type has
/// serves only where no exact one is left. Throws ConfigError with both lists when no permutation fits.
std::vector<i32> assign_ranks(const std::vector<RankGpu>& found, const std::vector<WantedGpu>& wanted);

/// The GPU of each wanted device, among those of one process. GPUs of one kind are taken in turn from `first`
/// on; of several kinds each device gets one of its own kind, as in assign_ranks(). Throws ConfigError, too,
/// for several kinds with fewer GPUs than devices.
std::vector<i32> assign_gpus(const std::vector<RankGpu>& found, const std::vector<WantedGpu>& wanted,
                             i32 first);

/// The devices of the cluster that the plan uses, as GPUs that ranks must have.
std::vector<WantedGpu> wanted_gpus(const Plan& plan, const Cluster& cluster);

/// The GPUs of all ranks, in rank order; collective.
std::vector<RankGpu> gather_gpus(const Processes& processes, const RankGpu& mine);

}  // namespace hetermoe
