#include "hetermoe/report/waits.h"

#include <algorithm>

#include "hetermoe/base/index.h"
#include "hetermoe/timeline/critical_path.h"

namespace hetermoe {
namespace {

/// Reads a timeline device by device.
class GapReader {
 public:
  GapReader(const Timeline& timeline, const std::vector<std::size_t>& group_of)
      : timeline_(timeline), end_(end_of_step(timeline)), path_(timeline), group_of_(group_of) {}

  /// Adds the seconds of one device.
  void read(DeviceId device, GroupUse& use) const {
    Seconds time = 0;
    std::size_t last_transfer = kNone;
    for (std::size_t i = first_span(device); i < timeline_.spans.size(); ++i) {
      const Span& span = timeline_.spans[i];
      if (span.device != device) break;
      if (timeline_.ops[idx(span.op)].queue != "compute") {
        if (last_transfer == kNone || span.end > timeline_.spans[last_transfer].end) last_transfer = i;
        continue;
      }
      if (span.start > time) add(path_.before(i, time), device, span.start - time, use.overhead, use);
      use.computing += std::max(0.0, span.end - std::max(span.start, time));
      time = std::max(time, span.end);
    }
    read_end(time, last_transfer, device, use);
  }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);

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
    add(path_.before(transfer, time), device, started - time, use.overhead, use);
    use.transferring += last.end - started;
    use.finished += std::max(0.0, end_ - last.end);
  }

  /// Divides idle time by the pieces of the path that led to its end; what they leave is `rest`.
  void add(const std::vector<PathPiece>& pieces, DeviceId device, Seconds idle, Seconds& rest,
           GroupUse& use) const {
    for (const PathPiece& piece : pieces) {
      if (piece.op == kNoOp) continue;
      const TimelineOp& op = timeline_.ops[idx(piece.op)];
      const bool computes = op.queue == "compute";
      if (computes && piece.device == device) continue;
      const Seconds seconds = std::min(piece.end - piece.start, idle);
      idle -= seconds;
      if (computes)
        add_wait(group_of_[idx(piece.device)], op.kind, seconds, use);
      else
        use.transferring += seconds;
    }
    rest += idle;
  }

  static void add_wait(std::size_t group, const std::string& kind, Seconds seconds, GroupUse& use) {
    auto entry = std::find_if(use.waiting.begin(), use.waiting.end(),
                              [&](const Wait& w) { return w.group == group && w.kind == kind; });
    if (entry == use.waiting.end()) entry = use.waiting.insert(entry, Wait{group, kind, 0});
    entry->share += seconds;
  }

  const Timeline& timeline_;
  const Seconds end_;
  CriticalPath path_;
  const std::vector<std::size_t>& group_of_;
};

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
    for (const DeviceId device : group.devices) reader.read(device, use);
    if (end > 0) divide(use, end * static_cast<double>(group.devices.size()));
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
