#include "hetermoe/report/waits.h"

#include <algorithm>
#include <cmath>

#include "hetermoe/base/index.h"
#include "hetermoe/timeline/critical_path.h"

namespace hetermoe {
namespace {

/// Reads a timeline device by device.
class GapReader {
 public:
  GapReader(const Timeline& timeline, const std::vector<std::size_t>& group_of)
      : timeline_(timeline),
        end_(end_of_step(timeline)),
        path_(timeline),
        group_of_(group_of),
        computed_(timeline.devices.size()),
        last_taker_(timeline.ops.size(), kNone) {
    const std::vector<Span>& spans = timeline.spans;
    for (std::size_t i = 0; i < spans.size(); ++i) {
      if (!computes(i)) continue;
      computed_[idx(spans[i].device)].push_back(i);
      for (const OpId transfer : timeline.ops[idx(spans[i].op)].after) {
        std::size_t& last = last_taker_[idx(transfer)];
        if (last == kNone || spans[i].start > spans[last].start) last = i;
      }
    }
  }

  /// Whether another device of its group, or one that it stands for, computes at the same times.
  bool has_double(const std::string& name) const {
    for (std::size_t d = 0; d < computed_.size(); ++d) {
      if (timeline_.devices[d].name != name) continue;
      if (timeline_.devices[d].stands_for > 1) return true;
      for (std::size_t other = 0; other < computed_.size(); ++other)
        if (other != d && group_of_[other] == group_of_[d] && same_times(computed_[d], computed_[other]))
          return true;
    }
    return false;
  }

  /// Seconds in which a device computes experts.
  Seconds of_experts(DeviceId device) const {
    Seconds sum = 0;
    for (const std::size_t i : computed_[idx(device)]) {
      const Span& span = timeline_.spans[i];
      if (timeline_.ops[idx(span.op)].kind == "experts") sum += span.end - span.start;
    }
    return sum;
  }

  /// Adds the seconds of one device.
  void read(DeviceId device, GroupUse& use) const {
    Seconds time = 0;
    std::size_t last_transfer = kNone;
    for (std::size_t i = first_span(device); i < timeline_.spans.size(); ++i) {
      const Span& span = timeline_.spans[i];
      if (span.device != device) break;
      if (!computes(i)) {
        if (last_transfer == kNone || span.end > timeline_.spans[last_transfer].end) last_transfer = i;
        continue;
      }
      if (span.start > time) {
        const Busy late = late_one(i, time);
        add(path_.before(i, time), device, span.start - time, late, use.overhead, use);
      }
      use.computing += std::max(0.0, span.end - std::max(span.start, time));
      time = std::max(time, span.end);
    }
    read_end(time, last_transfer, device, use);
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  using Busy = std::vector<Span>;  ///< compute spans of one device, cut to an interval

  bool same_times(const std::vector<std::size_t>& a, const std::vector<std::size_t>& b) const {
    const Seconds rounding = 1e-9 * end_;
    return std::ranges::equal(a, b, [&](std::size_t i, std::size_t j) {
      return std::abs(timeline_.spans[i].start - timeline_.spans[j].start) <= rounding &&
             std::abs(timeline_.spans[i].end - timeline_.spans[j].end) <= rounding;
    });
  }

  bool computes(std::size_t span) const {
    return timeline_.ops[idx(timeline_.spans[span].op)].queue == "compute";
  }

  /// What a device computes from one time to another.
  Busy busy(DeviceId device, Seconds from, Seconds to) const {
    const std::vector<std::size_t>& spans = computed_[idx(device)];
    auto at = std::upper_bound(spans.begin(), spans.end(), from,
                               [&](Seconds time, std::size_t i) { return time < timeline_.spans[i].end; });
    Busy out;
    for (; at != spans.end() && timeline_.spans[*at].start < to; ++at) {
      Span& span = out.emplace_back(timeline_.spans[*at]);
      span.start = std::max(span.start, from), span.end = std::min(span.end, to);
    }
    return out;
  }

  /// Of the devices that get rows by the transfers for which a span waited: what the last one computes from a
  /// time to the span's start; empty unless that one is still busy then.
  Busy late_one(std::size_t waiting, Seconds from) const {
    const Span& span = timeline_.spans[waiting];
    std::size_t last = waiting;
    for (const OpId earlier : timeline_.ops[idx(span.op)].after) {
      const std::size_t taker = last_taker_[idx(earlier)];
      if (timeline_.ops[idx(earlier)].queue != "compute" &&
          timeline_.spans[taker].start > timeline_.spans[last].start)
        last = taker;
    }
    if (last == waiting) return {};
    Busy spans = busy(timeline_.spans[last].device, from, span.start);
    const bool is_busy = !spans.empty() && spans.back().end >= span.start;
    return is_busy ? spans : Busy();
  }

  std::size_t first_span(DeviceId device) const {
    const auto first =
        std::lower_bound(timeline_.spans.begin(), timeline_.spans.end(), device,
                         [](const Span& span, DeviceId wanted) { return span.device < wanted; });
    return static_cast<std::size_t>(first - timeline_.spans.begin());
  }

  /// After its last compute op a device may still take part in transfers; then it has finished.
  void read_end(Seconds time, std::size_t transfer, DeviceId device, GroupUse& use) const {
    if (end_ <= time) return;
    if (time == 0 && transfer == kNone) {
      use.unused += end_;
      return;
    }
    if (transfer == kNone || timeline_.spans[transfer].end <= time) {
      use.finished += end_ - time;
      return;
    }
    const Span& last = timeline_.spans[transfer];
    const Seconds started = std::clamp(path_.started(last.op), time, last.end);
    add(path_.before(transfer, time), device, started - time, {}, use.overhead, use);
    use.transferring += last.end - started;
    use.finished += std::max(0.0, end_ - last.end);
  }

  /// Divides idle time by what a late device computes, then by the pieces of the path that led to its end;
  /// what they leave is `rest`.
  void add(const std::vector<PathPiece>& pieces, DeviceId device, Seconds idle, const Busy& late,
           Seconds& rest, GroupUse& use) const {
    for (const Span& span : late) {
      idle -= span.end - span.start;
      add_wait(span.device, timeline_.ops[idx(span.op)].kind, span.end - span.start, use);
    }
    for (const PathPiece& piece : pieces) {
      if (piece.op == kNoOp) continue;
      const TimelineOp& op = timeline_.ops[idx(piece.op)];
      if (op.queue == "compute" && piece.device == device) continue;
      Seconds seconds = piece.end - piece.start;
      for (const Span& span : late)
        seconds -= std::max(0.0, std::min(span.end, piece.end) - std::max(span.start, piece.start));
      seconds = std::clamp(seconds, 0.0, std::max(idle, 0.0));
      idle -= seconds;
      if (op.queue == "compute")
        add_wait(piece.device, op.kind, seconds, use);
      else
        use.transferring += seconds;
    }
    rest += std::max(idle, 0.0);
  }

  void add_wait(DeviceId device, const std::string& kind, Seconds seconds, GroupUse& use) const {
    const std::size_t group = group_of_[idx(device)];
    const std::string& name = timeline_.devices[idx(device)].name;
    // By device here; group_use() joins those of a group.
    auto entry = std::find_if(use.waiting.begin(), use.waiting.end(), [&](const Wait& w) {
      return w.group == group && w.kind == kind && w.device == name;
    });
    if (entry == use.waiting.end()) entry = use.waiting.insert(entry, Wait{group, kind, 0, name});
    entry->share += seconds;
  }

  const Timeline& timeline_;
  const Seconds end_;
  CriticalPath path_;
  const std::vector<std::size_t>& group_of_;
  std::vector<std::vector<std::size_t>> computed_;  ///< [device] its compute spans, in the order of time
  std::vector<std::size_t> last_taker_;  ///< [op] span that starts last of those that compute after it
};

/// Waits for the devices of a group become one, which names a device if nearly all of it is for that one.
std::vector<Wait> joined(const std::vector<Wait>& by_device, const std::vector<DeviceGroup>& groups,
                         const GapReader& reader) {
  constexpr double kNearlyAll = 0.9;
  std::vector<Wait> out;
  std::vector<double> most;  // [out] of one device
  for (const Wait& wait : by_device) {
    const auto same = [&](const Wait& other) { return other.group == wait.group && other.kind == wait.kind; };
    const auto at = static_cast<std::size_t>(std::find_if(out.begin(), out.end(), same) - out.begin());
    if (at == out.size()) out.push_back({wait.group, wait.kind, 0, ""}), most.push_back(0);
    out[at].share += wait.share;
    if (wait.share > most[at]) most[at] = wait.share, out[at].device = wait.device;
  }
  for (std::size_t i = 0; i < out.size(); ++i)
    if (most[i] < kNearlyAll * out[i].share || groups[out[i].group].devices.size() == 1 ||
        reader.has_double(out[i].device))
      out[i].device.clear();
  return out;
}

/// Adds what one device does, as often as it stands for one.
void add_times(const GroupUse& one, i64 times, GroupUse& sum) {
  const double by = static_cast<double>(times);
  sum.computing += by * one.computing;
  sum.transferring += by * one.transferring;
  sum.overhead += by * one.overhead;
  sum.finished += by * one.finished;
  sum.unused += by * one.unused;
  for (Wait wait : one.waiting) wait.share *= by, sum.waiting.push_back(std::move(wait));
}

/// Waits for one device and kind, of several that wait, become one.
std::vector<Wait> by_device(const std::vector<Wait>& all) {
  std::vector<Wait> out;
  for (const Wait& wait : all) {
    const auto same = std::ranges::find_if(out, [&](const Wait& other) {
      return other.group == wait.group && other.kind == wait.kind && other.device == wait.device;
    });
    if (same == out.end())
      out.push_back(wait);
    else
      same->share += wait.share;
  }
  return out;
}

void divide(GroupUse& use, double by) {
  use.computing /= by;
  use.transferring /= by;
  use.overhead /= by;
  use.finished /= by;
  use.unused /= by;
  for (Wait& wait : use.waiting) wait.share /= by;
  std::sort(use.waiting.begin(), use.waiting.end(),
            [](const Wait& a, const Wait& b) { return a.share > b.share; });
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

namespace {

/// [device] the group it belongs to.
std::vector<std::size_t> groups_of_devices(const Timeline& timeline, const std::vector<DeviceGroup>& groups) {
  std::vector<std::size_t> group_of(timeline.devices.size(), 0);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const DeviceId device : groups[g].devices) group_of[idx(device)] = g;
  }
  return group_of;
}

}  // namespace

std::vector<GroupUse> group_use(const Timeline& timeline) {
  const std::vector<DeviceGroup> groups = device_groups(timeline);
  const std::vector<std::size_t> group_of = groups_of_devices(timeline, groups);
  const GapReader reader(timeline, group_of);
  const Seconds end = end_of_step(timeline);
  std::vector<GroupUse> uses;
  for (const DeviceGroup& group : groups) {
    GroupUse use;
    use.group = group;
    i64 devices = 0;
    Seconds most = 0, all = 0;  // that experts are computed
    for (const DeviceId device : group.devices) {
      const TimelineDevice& of = timeline.devices[idx(device)];
      GroupUse one;
      reader.read(device, one);
      add_times(one, of.stands_for, use);
      devices += of.stands_for;
      const Seconds experts = reader.of_experts(device);
      all += experts * static_cast<double>(of.stands_for);
      if (experts > most) most = experts, use.most_experts = of.name;
    }
    if (all > 0) use.experts_over_mean = most / (all / static_cast<double>(devices));
    use.waiting = joined(by_device(use.waiting), groups, reader);
    if (end > 0) divide(use, end * static_cast<double>(devices));
    uses.push_back(std::move(use));
  }
  return uses;
}

std::vector<PathShare> critical_path(const Timeline& timeline) {
  const Seconds end = end_of_step(timeline);
  if (end <= 0) return {};
  const std::vector<DeviceGroup> groups = device_groups(timeline);
  const std::vector<std::size_t> group_of = groups_of_devices(timeline, groups);
  std::vector<PathShare> shares;
  for (const PathPiece& piece : CriticalPath(timeline).of_step()) {
    PathShare one;
    if (piece.op != kNoOp) {
      const TimelineOp& op = timeline.ops[idx(piece.op)];
      one.kind = op.kind;
      if (op.queue == "compute") one.who = groups[group_of[idx(piece.device)]].label();
    }
    const auto found = std::find_if(shares.begin(), shares.end(), [&](const PathShare& share) {
      return share.kind == one.kind && share.who == one.who;
    });
    PathShare& share = found != shares.end() ? *found : shares.emplace_back(std::move(one));
    share.share += (piece.end - piece.start) / end;
  }
  std::stable_sort(shares.begin(), shares.end(),
                   [](const PathShare& a, const PathShare& b) { return a.share > b.share; });
  return shares;
}

}  // namespace hetermoe
