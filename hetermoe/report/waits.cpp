#include "hetermoe/report/waits.h"

#include <algorithm>
#include <optional>

namespace hetermoe {
namespace {

struct Interval {
  Seconds start = 0, end = 0;
};

/// A transfer as one of its devices sees it.
struct Transfer {
  Seconds entered = 0;  ///< this device is ready
  Seconds started = 0;  ///< all participants are
  Seconds end = 0;
  OpId op = 0;
  const std::string* queue = nullptr;
};

/// Everything group_use() needs, indexed once. Lists are sorted by time.
struct Index {
  std::vector<std::vector<Interval>> compute;     // [device] merged
  std::vector<std::vector<Transfer>> transfers;   // [device] by end
  std::vector<std::vector<DeviceId>> devices_of;  // [op]
};

std::vector<Interval> merged(std::vector<Interval> spans) {
  std::sort(spans.begin(), spans.end(),
            [](const Interval& a, const Interval& b) { return a.start < b.start; });
  std::vector<Interval> out;
  for (const Interval& span : spans) {
    if (!out.empty() && span.start <= out.back().end) {
      out.back().end = std::max(out.back().end, span.end);
    } else {
      out.push_back(span);
    }
  }
  return out;
}

Index index_of(const Timeline& timeline) {
  Index index{std::vector<std::vector<Interval>>(timeline.devices.size()),
              std::vector<std::vector<Transfer>>(timeline.devices.size()),
              std::vector<std::vector<DeviceId>>(timeline.ops.size())};
  std::vector<Seconds> started(timeline.ops.size(), 0);
  for (const Span& span : timeline.spans) {
    const auto op = static_cast<std::size_t>(span.op);
    started[op] = std::max(started[op], span.start);
    index.devices_of[op].push_back(span.device);
  }
  for (const Span& span : timeline.spans) {
    const auto op = static_cast<std::size_t>(span.op);
    const auto device = static_cast<std::size_t>(span.device);
    if (timeline.ops[op].queue == "compute") {
      index.compute[device].push_back({span.start, span.end});
    } else {
      index.transfers[device].push_back(
          {span.start, std::min(started[op], span.end), span.end, span.op, &timeline.ops[op].queue});
    }
  }
  for (std::vector<Interval>& spans : index.compute) spans = merged(std::move(spans));
  for (std::vector<Transfer>& list : index.transfers) {
    std::sort(list.begin(), list.end(), [](const Transfer& a, const Transfer& b) { return a.end < b.end; });
  }
  return index;
}

/// The participant of `transfer` other than `self` whose compute ended last before the transfer could start.
std::optional<DeviceId> latest_participant(const Index& index, const Transfer& transfer, DeviceId self,
                                           Seconds slack) {
  std::optional<DeviceId> latest;
  Seconds latest_end = -1;
  for (const DeviceId other : index.devices_of[static_cast<std::size_t>(transfer.op)]) {
    if (other == self) continue;
    const std::vector<Interval>& spans = index.compute[static_cast<std::size_t>(other)];
    auto after = std::upper_bound(spans.begin(), spans.end(), transfer.started + slack,
                                  [](Seconds time, const Interval& span) { return time < span.end; });
    const Seconds end = after == spans.begin() ? 0 : std::prev(after)->end;
    if (end > latest_end) {
      latest = other;
      latest_end = end;
    }
  }
  return latest;
}

/// Adds the parts of one idle interval of `device` to `use`, in seconds.
class GapReader {
 public:
  GapReader(const Index& index, const std::vector<std::size_t>& group_of, Seconds slack)
      : index_(index), group_of_(group_of), slack_(slack) {}

  void read(const Interval& gap, DeviceId device, bool is_last, GroupUse& use) const {
    double& rest = is_last ? use.finished : use.overhead;
    const std::vector<Transfer>& transfers = index_.transfers[static_cast<std::size_t>(device)];
    // The last transfer that ended inside the gap is taken as the reason why the gap ended.
    const auto after = std::upper_bound(transfers.begin(), transfers.end(), gap.end + slack_,
                                        [](Seconds time, const Transfer& t) { return time < t.end; });
    if (after == transfers.begin() || std::prev(after)->end <= gap.start) {
      rest += gap.end - gap.start;
      return;
    }
    const auto last = std::prev(after);
    const Seconds started = std::clamp(last->started, gap.start, gap.end);
    const Seconds ended = std::clamp(last->end, gap.start, gap.end);
    rest += gap.end - ended;
    // While the lane carried earlier transfers, this transfer waited for the network and for no device.
    const Seconds queued = busy(transfers.begin(), last, *last->queue, {gap.start, started});
    use.transferring += ended - started + queued;
    add_wait(*last, device, started - gap.start - queued, use);
  }

 private:
  using Iterator = std::vector<Transfer>::const_iterator;

  /// Time within `window` that the lane `queue` was busy; a lane carries one transfer at a time.
  static Seconds busy(Iterator begin, Iterator last, const std::string& queue, const Interval& window) {
    Seconds total = 0;
    for (Iterator t = last; t != begin;) {
      --t;
      if (t->end <= window.start) break;  // sorted by end
      if (*t->queue != queue) continue;
      total += std::max(0.0, std::min(t->end, window.end) - std::max(t->started, window.start));
    }
    return std::min(total, window.end - window.start);
  }

  void add_wait(const Transfer& transfer, DeviceId device, Seconds seconds, GroupUse& use) const {
    if (seconds <= 0) return;
    const std::optional<DeviceId> other = latest_participant(index_, transfer, device, slack_);
    if (!other) {
      use.overhead += seconds;
      return;
    }
    const std::size_t group = group_of_[static_cast<std::size_t>(*other)];
    auto entry =
        std::find_if(use.waiting.begin(), use.waiting.end(), [&](const Wait& w) { return w.group == group; });
    if (entry == use.waiting.end()) entry = use.waiting.insert(entry, Wait{group, 0});
    entry->share += seconds;
  }

  const Index& index_;
  const std::vector<std::size_t>& group_of_;
  Seconds slack_;
};

void read_device(const Index& index, const GapReader& reader, DeviceId device, Seconds step, GroupUse& use) {
  Seconds time = 0;
  for (const Interval& span : index.compute[static_cast<std::size_t>(device)]) {
    if (span.start > time) reader.read({time, span.start}, device, false, use);
    use.computing += span.end - span.start;
    time = span.end;
  }
  if (step > time) reader.read({time, step}, device, true, use);
}

void divide(GroupUse& use, double by) {
  use.computing /= by;
  use.transferring /= by;
  use.overhead /= by;
  use.finished /= by;
  for (Wait& wait : use.waiting) wait.share /= by;
  std::sort(use.waiting.begin(), use.waiting.end(),
            [](const Wait& a, const Wait& b) { return a.group < b.group; });
}

}  // namespace

std::vector<DeviceGroup> device_groups(const Timeline& timeline) {
  std::vector<std::string> roles = {"attention", "both", "expert"};
  for (const TimelineDevice& device : timeline.devices) {
    if (std::find(roles.begin(), roles.end(), device.role) == roles.end()) roles.push_back(device.role);
  }
  std::vector<DeviceGroup> groups;
  for (const std::string& role : roles) {
    for (std::size_t d = 0; d < timeline.devices.size(); ++d) {
      const TimelineDevice& device = timeline.devices[d];
      if (device.role != role) continue;
      auto group = std::find_if(groups.begin(), groups.end(), [&](const DeviceGroup& g) {
        return g.role == role && g.type == device.type;
      });
      if (group == groups.end()) group = groups.insert(group, DeviceGroup{role, device.type, {}});
      group->devices.push_back(static_cast<DeviceId>(d));
    }
  }
  return groups;
}

std::vector<GroupUse> group_use(const Timeline& timeline) {
  const std::vector<DeviceGroup> groups = device_groups(timeline);
  std::vector<std::size_t> group_of(timeline.devices.size(), 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const DeviceId device : groups[g].devices) group_of[static_cast<std::size_t>(device)] = g;
  }
  const Index index = index_of(timeline);
  // The clocks of devices differ by microseconds. Gaps below a millionth of the step are ignored for that
  // reason.
  const GapReader reader(index, group_of, 1e-6 * timeline.step);
  std::vector<GroupUse> uses;
  for (const DeviceGroup& group : groups) {
    GroupUse use;
    use.group = group;
    for (const DeviceId device : group.devices) read_device(index, reader, device, timeline.step, use);
    if (timeline.step > 0) divide(use, timeline.step * static_cast<double>(group.devices.size()));
    uses.push_back(std::move(use));
  }
  return uses;
}

}  // namespace hetermoe
