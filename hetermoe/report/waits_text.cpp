#include "hetermoe/report/waits_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "hetermoe/report/table.h"

namespace hetermoe {
namespace {

/// Less of the step is not worth a word.
constexpr double kNotable = 0.005;

std::string waiting_for(const std::vector<GroupUse>& uses, const GroupUse& use) {
  std::string text;
  for (const Wait& wait : use.waiting) {
    if (wait.share < kNotable) continue;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        done_by(wait.kind, uses[wait.group].group.label()), format_percent(wait.share));
  }
  return text.empty() ? "nobody" : text;
}

}  // namespace

std::string done_by(const std::string& kind, const std::string& group) {
  const std::string role = (kind.ends_with('s') ? kind.substr(0, kind.size() - 1) : kind) + " ";
  return kind + " on " + (group.starts_with(role) ? group.substr(role.size()) : group);
}

/// Why transfers may take long: one device has most of the rows. Empty = none has.
static std::string crowded_text(const std::vector<GroupUse>& uses) {
  constexpr double kCrowded = 2;
  const auto most = std::ranges::max_element(uses, {}, &GroupUse::experts_over_mean);
  if (most == uses.end() || most->experts_over_mean < kCrowded) return "";
  return fmt::format(
      " {} computes experts {:.1f} times as long as the mean of the {} devices: its messages are the "
      "longest.",
      most->most_experts, most->experts_over_mean, most->group.label());
}

std::string longest_wait_text(const std::vector<GroupUse>& uses) {
  double longest = 0;
  std::string text;
  const auto consider = [&](double share, const std::string& what) {
    if (share > longest) longest = share, text = what;
  };
  for (const GroupUse& use : uses) {
    if (use.group.is_host()) continue;
    const std::string idle = fmt::format("Longest wait: {} devices wait ", use.group.label());
    if (!use.waiting.empty()) {
      const Wait& wait = use.waiting[0];
      consider(wait.share,
               fmt::format("{}{} of the step for {}.", idle, format_percent(wait.share),
                           !wait.device.empty()        ? done_by(wait.kind, wait.device)
                           : &uses[wait.group] == &use ? wait.kind + " on others of them"
                                                       : done_by(wait.kind, uses[wait.group].group.label())));
    }
    consider(use.transferring, fmt::format("{}{} of the step for transfers.{}", idle,
                                           format_percent(use.transferring), crowded_text(uses)));
  }
  return longest < kNotable
             ? "No group of devices waits for another or for transfers for more than 0.5 % of the step."
             : text;
}

std::string overlap_text(const Timeline& timeline) {
  if (!steps_overlap(timeline)) return "";
  return fmt::format(
      "These shares are of one step alone, {} from its first op to its last. Other steps fill its gaps.",
      format_seconds(end_of_step(timeline)));
}

std::string critical_path_text(const std::vector<PathShare>& path) {
  std::string text;
  double others = 0;
  for (const PathShare& share : path) {
    if (share.share < kNotable) {
      others += share.share;
      continue;
    }
    const std::string what = share.kind.empty() ? "gaps between ops" : share.kind;
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ",
                        share.who.empty() ? what : done_by(what, share.who), format_percent(share.share));
  }
  if (others >= kNotable) text += fmt::format(", others {}", format_percent(others));
  return text.empty() ? "" : "Critical path: " + text + ".";
}

std::string waits_text(const Timeline& timeline) {
  const std::vector<GroupUse> uses = group_use(timeline);
  Table table({"devices", "computing", "transfers", "other gaps", "finished", "without work", "waiting for"});
  for (const GroupUse& use : uses) {
    table.add_row({fmt::format("{} ({})", use.group.label(), use.group.devices.size()),
                   format_percent(use.computing), format_percent(use.transferring),
                   format_percent(use.overhead), format_percent(use.finished), format_percent(use.unused),
                   waiting_for(uses, use)});
  }
  table.align(6, Align::kLeft);
  const std::string overlap = overlap_text(timeline);
  return fmt::format("{}{}\n{}\n{}\n", overlap.empty() ? "" : overlap + "\n", table.str(),
                     longest_wait_text(uses), critical_path_text(critical_path(timeline)));
}

Json roles_json(const Timeline& timeline) {
  const std::vector<GroupUse> uses = group_use(timeline);
  Json roles = Json::array();
  for (const GroupUse& use : uses) {
    Json waiting = Json::object();
    for (const Wait& wait : use.waiting) waiting[uses[wait.group].group.label()][wait.kind] = wait.share;
    roles.push_back({{"role", use.group.role},
                     {"type", use.group.type},
                     {"devices", use.group.devices},
                     {"computing", use.computing},
                     {"transferring", use.transferring},
                     {"waiting_for", waiting},
                     {"overhead", use.overhead},
                     {"finished", use.finished},
                     {"unused", use.unused}});
  }
  return roles;
}

Json path_json(const Timeline& timeline) {
  Json path = Json::array();
  for (const PathShare& share : critical_path(timeline))
    path.push_back({{"kind", share.kind}, {"who", share.who}, {"share", share.share}});
  return path;
}

}  // namespace hetermoe
