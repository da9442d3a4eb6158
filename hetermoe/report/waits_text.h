#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/report/waits.h"

// Results of waits.h in words, alike in every command.
namespace hetermoe {

/// "Longest wait: attention A40 devices wait 35 % of the step for experts on V100."
std::string longest_wait_text(const std::vector<GroupUse>& uses);

/// "Critical path: experts on V100 62 %, attention on A40 20 %, dispatch 9 %, ..."
std::string critical_path_text(const std::vector<PathShare>& path);

/// "experts on V100", "head on attention A40": the role of the group is left out where the kind of op says
/// it. group: a label (DeviceGroup).
std::string done_by(const std::string& kind, const std::string& group);

/// What the shares are of where steps overlap; "" where they do not.
std::string overlap_text(const Timeline& timeline);

/// A table of the groups, and these sentences.
std::string waits_text(const Timeline& timeline);

/// [{role, type, devices, computing, transferring, waiting_for: {label: {kind: share}}, overhead, finished}]
Json roles_json(const Timeline& timeline);
/// [{kind, who, share}]
Json path_json(const Timeline& timeline);

}  // namespace hetermoe
