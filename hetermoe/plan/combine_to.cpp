#include "hetermoe/plan/combine_to.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/plan/backward_shares.h"

namespace hetermoe {

const std::vector<std::string>& EnumNames<CombineTo>::names() {
  static const std::vector<std::string> all = names_of_all<CombineTo>({"source", "next"});
  return all;
}

namespace {

constexpr const char* kKey = "combine_to";

std::string refused(const std::string& what) {
  return fmt::format("[{}] got next in a plan with {}, which no such plan may have: expected source", kKey,
                     what);
}

/// A device in both rows; none = -1.
DeviceId in_both(const ShareRow& a, const ShareRow& b) {
  for (const Share& share : a) {
    if (std::any_of(b.begin(), b.end(), [&](const Share& other) { return other.device == share.device; }))
      return share.device;
  }
  return -1;
}

/// A buffer of a device belongs to one side of a move: the same residual stream is read and written.
std::vector<std::string> overlap(const Group& group, std::size_t g) {
  for (std::size_t l = 0; l < group.layers.size(); ++l) {
    const bool last = l + 1 == group.layers.size();
    const Shares &shares = group.layers[l].attention,
                 &after = last ? group.head : group.layers[l + 1].attention;
    for (i32 m = 0; m < static_cast<i32>(group.microbatches.size()); ++m) {
      const ShareRow &from = share_row(shares, m), &to = share_row(after, m);
      const DeviceId device = from == to ? -1 : in_both(from, to);
      if (device < 0) continue;
      return {fmt::format(
          "[{}] got next, but device {} has shares of microbatch {} in layer {} and in {}, which are divided "
          "otherwise (groups[{}]): expected source, or devices of their own for each of both",
          kKey, device, m, l, last ? std::string("the head") : fmt::format("layer {}", l + 1), g)};
    }
  }
  return {};
}

}  // namespace

std::vector<std::string> combine_faults(const Plan& plan) {
  if (plan.combine_to == CombineTo::kSource) return {};
  if (plan.tally) return {refused("tally")};
  if (plan.guest_slots > 0) return {refused("guest_slots")};
  if (has_teams(plan)) return {refused("teams")};
  for (std::size_t g = 0; g < plan.groups.size(); ++g) {
    const Group& group = plan.groups[g];
    if (has_backward_shares(group)) return {refused("attention_backward")};
    if (std::any_of(group.layers.begin(), group.layers.end(), roams)) return {refused("experts_at sources")};
    if (std::vector<std::string> faults = overlap(group, g); !faults.empty()) return faults;
  }
  return {};
}

}  // namespace hetermoe
