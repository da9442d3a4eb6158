#pragma once
#include <string>
#include <vector>

#include "hetermoe/timeline/timeline.h"

// Finds out from a timeline alone who waits for whom, and where the time of the compute lanes goes. Where
// steps overlap a timeline shows one step alone: shares are of its time from beginning to end, not of
// Timeline::step.
namespace hetermoe {

/// Devices of one role and type.
struct DeviceGroup {
  std::string role, type;
  std::vector<DeviceId> devices;
  /// "attention A40"; just "A40" where the devices have both roles, and "host".
  std::string label() const { return role == "both" || is_host() ? type : role + " " + type; }
  /// Hosts are there for the devices: that they wait is no loss.
  bool is_host() const { return role == "host"; }
};

/// Grouped by role (attention, both, expert, others), then by first appearance of the type.
std::vector<DeviceGroup> device_groups(const Timeline& timeline);

/// Idle until devices of that group had ended ops of that kind.
struct Wait {
  std::size_t group = 0;  ///< index into the list of groups
  std::string kind;       ///< of ops
  double share = 0;
  /// The name of the device that nearly all of it is for; empty = of several, the only one of its group, or
  /// one of several that compute at the same times.
  std::string device = {};
};

/// How a group spends the step: shares of its time from beginning to end, mean over its devices. All of them
/// together are 1.
struct GroupUse {
  DeviceGroup group;
  double computing = 0;       ///< a compute op runs
  double transferring = 0;    ///< no compute; the data waited for is on its way
  std::vector<Wait> waiting;  ///< no compute: an op of another device is late; longest first
  double overhead =
      0;  ///< idle although nothing is missing that the timeline shows (gaps between ops, local waits)
  double finished = 0;  ///< all compute ops of the step are done
  double unused = 0;    ///< of devices that the step gives nothing to compute or to send
  /// The device that computes experts longest, over the mean of its group; 1 where none does.
  std::string most_experts;
  double experts_over_mean = 1;
};

/// An idle interval of a compute lane is divided by following the critical path back from the op that ended
/// it: while an op of another device ran on that path, the device waited for it; while a transfer did, for
/// the network; while nothing did, the time is overhead. A device that gets rows by the same transfer, but is
/// still busy when they come, is behind: while that one computes, it is what the device waits for.
std::vector<GroupUse> group_use(const Timeline& timeline);

/// A part of the critical path of a step.
struct PathShare {
  std::string kind;  ///< of ops; "" = nothing ran
  std::string who;   ///< label of the group that computed; "" for transfers
  double share = 0;  ///< of the step
};

/// Largest first; the shares sum to 1.
std::vector<PathShare> critical_path(const Timeline& timeline);

}  // namespace hetermoe
