#include <fmt/ranges.h>
#include <algorithm>
#include <charconv>
#include <deque>
#include <map>
#include <sstream>

#include "hetermoe/schedule/builder.h"
#include "hetermoe/schedule/expected_ops.h"
#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/schedule/residency.h"

// An order written out: the text form of a schedule, edited by a person or a search. Append numbers give the
// order; lanes and dependencies follow from the plan, and the lanes must be those of the text.
namespace hetermoe {
namespace {

constexpr std::size_t kMaxTextFaults = 10;

struct Listed {
  Op op;
  std::vector<LaneId> lanes;
};

i32 number(const std::string& text, std::size_t from, const std::string& where) {
  i32 value = 0;
  const char* end = text.data() + text.size();
  const auto [rest, code] = std::from_chars(text.data() + std::min(from, text.size()), end, value);
  if (code != std::errc() || rest != end || value < 0) {
    fail<ConfigError>(where, "got \"{}\", expected a number from 0",
                      text.substr(std::min(from, text.size())));
  }
  return value;
}

std::int16_t small_number(const std::string& text, std::size_t from, const std::string& where) {
  const i32 value = number(text, from, where);
  if (value > INT16_MAX) fail<ConfigError>(where, "got {}, expected at most {}", value, INT16_MAX);
  return static_cast<std::int16_t>(value);
}

Op parse_op(const std::string& text, const std::string& where) {
  std::istringstream words(text);
  std::string name, word;
  words >> name;
  Op op;
  const std::size_t dot = name.find('.');
  op.kind = enum_from<OpKind>(name.substr(0, dot), where);
  if (dot != std::string::npos) op.phase = enum_from<Phase>(name.substr(dot + 1), where);
  while (words >> word) {
    switch (word[0]) {
      case 'l':
        op.layer = number(word, 1, where);
        break;
      case 'm':
        op.microbatch = number(word, 1, where);
        break;
      case 'c':
        op.chunk = small_number(word, 1, where);
        break;
      case 'g':
        op.group = small_number(word, 1, where);
        break;
      case 't':
        op.team = small_number(word, 1, where);
        break;
      case 's':
        op.state = number(word, 1, where);
        break;
      case 'd':
        op.device = number(word, 1, where);
        break;
      default:
        fail<ConfigError>(where, "\"{}\" in \"{}\": expected l, m, c, g, t, s or d and a number", word, text);
    }
  }
  return op;
}

/// "device 3 to_expert", "host 0 to_device 2" -> lane.
LaneId parse_lane(const std::string& text, const Placement& placement, const std::string& where) {
  std::istringstream words(text);
  std::string place, id, queue, link;
  words >> place >> id >> queue >> link;
  const bool is_host = place == "host";
  if ((place != "device" && !is_host) || queue.empty()) {
    fail<ConfigError>(where, "got \"{}\", expected \"device <number> <queue>: ...\"", text);
  }
  const i32 index = number(id, 0, where);
  const i32 count = is_host ? placement.num_hosts() : placement.num_devices();
  if (index >= count) fail<ConfigError>(where, "{} {} does not exist: there are {}", place, index, count);
  const i32 link_index = link.empty() ? 0 : number(link, 0, where);
  if (link_index >= (is_host ? kHostLinks : 1))
    fail<ConfigError>(where, "link {} in \"{}\": a host has {}, a device one", link_index, text, kHostLinks);
  return lane_of(is_host ? placement.num_devices() + index : index, enum_from<Queue>(queue, where),
                 link_index);
}

std::map<i32, Listed> parse(const std::string& text, const Placement& placement) {
  std::map<i32, Listed> listed;
  std::istringstream lines(text);
  std::string line;
  for (int n = 1; std::getline(lines, line); ++n) {
    const std::string where = fmt::format("explicit_order:{}", n);
    if (line.empty()) continue;
    const std::size_t colon = line.find(':');
    if (colon == std::string::npos) {
      fail<ConfigError>(where, "no ':' after the lane in \"{}\"", line.substr(0, 40));
    }
    const LaneId lane = parse_lane(line.substr(0, colon), placement, where);
    for (std::size_t start = colon + 1; start < line.size();) {
      const std::size_t end = std::min(line.find('|', start), line.size());
      std::istringstream entry(line.substr(start, end - start));
      std::string id, rest;
      entry >> id;
      std::getline(entry, rest);
      const Op op = parse_op(rest, where);
      const auto [at, fresh] = listed.try_emplace(number(id, 0, where), Listed{op, {}});
      if (!(at->second.op == op)) fail<ConfigError>(where, "op {} has two meanings", id);
      at->second.lanes.push_back(lane);
      start = end + 1;
    }
  }
  for (auto& [id, entry] : listed) std::sort(entry.lanes.begin(), entry.lanes.end());
  return listed;
}

std::string name(const ExpectedOp& op) {
  return op.device < 0 ? to_string(op.op) : fmt::format("{} on device {}", to_string(op.op), op.device);
}

/// Which must be the same ops, whatever their order.
void check_same(std::vector<ExpectedOp> found, std::vector<ExpectedOp> expected) {
  std::sort(found.begin(), found.end());
  std::sort(expected.begin(), expected.end());
  std::vector<ExpectedOp> missing, extra;
  std::set_difference(expected.begin(), expected.end(), found.begin(), found.end(),
                      std::back_inserter(missing));
  std::set_difference(found.begin(), found.end(), expected.begin(), expected.end(),
                      std::back_inserter(extra));
  std::vector<std::string> faults;
  for (const ExpectedOp& op : missing) faults.push_back(name(op) + " is missing");
  for (const ExpectedOp& op : extra) faults.push_back(name(op) + " is not part of the step, or there twice");
  if (faults.empty()) return;
  const std::size_t total = faults.size();
  faults.resize(std::min(total, kMaxTextFaults));
  fail<ConfigError>("explicit_order", "does not hold the ops of this plan ({} faults):\n  {}", total,
                    fmt::join(faults, "\n  "));
}

/// The text must hold every op of the step once, and no other; of weights that visit devices the fetches and
/// stores that its order of compute ops takes. Sets their slots.
void check_complete(std::map<i32, Listed>& listed, const Placement& placement) {
  std::vector<ExpectedOp> others, visits;
  std::vector<std::pair<Op, DeviceId>> computed;
  for (const auto& [id, entry] : listed) {
    const bool computes = is_compute(entry.op.kind);
    const DeviceId device = computes ? device_of(entry.lanes[0]) : -1;
    (is_visit(entry.op, placement) ? visits : others).push_back({entry.op, device});
    if (computes) computed.push_back({entry.op, device});
  }
  check_same(std::move(others), expected_ops(placement));
  std::vector<ExpectedOp> expected;
  std::map<ExpectedOp, std::deque<std::int16_t>> slots;
  for (const Op& visit : replay_visits(placement, computed).visits) {
    expected.push_back({visit, -1});
    slots[{visit, -1}].push_back(visit.slot);
  }
  check_same(std::move(visits), std::move(expected));
  for (auto& [id, entry] : listed) {
    if (!is_visit(entry.op, placement)) continue;
    std::deque<std::int16_t>& of = slots[{entry.op, -1}];
    entry.op.slot = of.front();
    of.pop_front();
  }
}

void append_listed(ScheduleBuilder& builder) {
  const Placement& placement = builder.placement();
  std::map<i32, Listed> listed = parse(placement.plan().explicit_order, placement);
  check_complete(listed, placement);
  builder.list_visits();
  for (const auto& [id, entry] : listed) {
    if (is_compute(entry.op.kind)) {
      builder.compute(entry.op, device_of(entry.lanes[0]));
    } else {
      builder.transfer(entry.op);
    }
    const Schedule& schedule = builder.schedule();
    const std::span<const LaneId> lanes = schedule.lanes_of(schedule.num_ops() - 1);
    if (!std::equal(lanes.begin(), lanes.end(), entry.lanes.begin(), entry.lanes.end())) {
      fail<ConfigError>(fmt::format("explicit_order op {} {}", id, to_string(entry.op)),
                        "stands on {} lanes, but the plan gives it {} others", entry.lanes.size(),
                        lanes.size());
    }
  }
}

}  // namespace

OrderPolicyTraits order_rows::explicit_order() {
  return {.policy = OrderPolicy::kExplicit,
          .append = append_listed,
          .appends_end_of_step = true,
          .treats_equals_alike = false,
          .has_window = false,
          .zero_window_is_all = false,
          .windows_in_sequence = false,
          .has_stages = false,
          .has_rounds = false,
          .in_flight = in_flight_of_window,
          .plan_name = ""};
}

}  // namespace hetermoe
