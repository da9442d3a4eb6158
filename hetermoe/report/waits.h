#pragma once
#include <string>
#include <vector>

#include "hetermoe/timeline/timeline.h"

// Finds out from a timeline alone who waits for whom, and where the time of the compute lanes goes.
namespace hetermoe {

/// Devices of one role and type.
struct DeviceGroup {
  std::string role, type;
  std::vector<DeviceId> devices;
  /// "attention A40"; just "A40" where the devices have both roles.
  std::string label() const { return role == "both" ? type : role + " " + type; }
};

/// Grouped by role (attention, both, expert, others), then by first appearance of the type.
std::vector<DeviceGroup> device_groups(const Timeline& timeline);

struct Wait {
  std::size_t group = 0;  ///< index into the list of groups
  double share = 0;
};

/// How a group spends the step: shares of the step, mean over its devices. All of them together are 1.
struct GroupUse {
  DeviceGroup group;
  double computing = 0;     ///< a compute op runs
  double transferring = 0;  ///< no compute; the data waited for is on its way
  std::vector<Wait>
      waiting;  ///< no compute, no transfer: a device of that group has not finished what it must send
  double overhead =
      0;  ///< idle although nothing is missing that the timeline shows (gaps between ops, local waits)
  double finished = 0;  ///< all compute ops of the step are done
};

/// The last transfer that ended inside an idle interval of a compute lane explains the interval. After all
/// participants had entered that transfer, the device waited for the network. Before that moment it waited
/// for the lane as long as the lane carried earlier transfers. In the rest of the interval it waited for the
/// participant that finished its previous compute op last.
std::vector<GroupUse> group_use(const Timeline& timeline);

}  // namespace hetermoe
