#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/report/waits.h"

// Results of waits.h in words, alike in every command.
namespace hetermoe {

/// "Longest wait: attention A40 devices are idle 35 % of the step until experts on expert V100 are done."
std::string longest_wait_text(const std::vector<GroupUse>& uses);

/// "Critical path: experts on expert V100 62 %, attention on attention A40 20 %, dispatch 9 %, ..."
std::string critical_path_text(const std::vector<PathShare>& path);

/// A table of the groups, and both sentences.
std::string waits_text(const Timeline& timeline);

/// [{role, type, devices, computing, transferring, waiting_for: {label: {kind: share}}, overhead, finished}]
Json roles_json(const Timeline& timeline);
/// [{kind, who, share}]
Json path_json(const Timeline& timeline);

}  // namespace hetermoe
