#include "hetermoe/report/device_classes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

constexpr double kAlike = 0.01;  // of the step

/// The spans of each device, which lie side by side.
std::vector<std::span<const Span>> spans_by_device(const Timeline& timeline) {
  std::vector<std::span<const Span>> out(timeline.devices.size());
  const std::vector<Span>& all = timeline.spans;
  for (std::size_t begin = 0; begin < all.size();) {
    std::size_t end = begin;
    while (end < all.size() && all[end].device == all[begin].device) ++end;
    out[idx(all[begin].device)] = {all.data() + begin, end - begin};
    begin = end;
  }
  return out;
}

bool same_work(const TimelineOp& a, const TimelineOp& b) {
  return a.kind == b.kind && a.phase == b.phase && a.layer == b.layer && a.microbatch == b.microbatch &&
         a.queue == b.queue;
}

/// The largest difference of two devices' spans; none = they are not alike.
std::optional<Seconds> difference_of(const Timeline& timeline, std::span<const Span> a,
                                     std::span<const Span> b) {
  if (a.size() != b.size()) return std::nullopt;
  Seconds most = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max({most, std::abs(a[i].start - b[i].start), std::abs(a[i].end - b[i].end)});
    if (most > kAlike * timeline.step || !same_work(timeline.ops[idx(a[i].op)], timeline.ops[idx(b[i].op)]))
      return std::nullopt;
  }
  return most;
}

/// Spans of all timelines, device by device.
struct AllSpans {
  const std::vector<const Timeline*>& timelines;
  std::vector<std::vector<std::span<const Span>>> of;  // [timelines][devices]

  explicit AllSpans(const std::vector<const Timeline*>& all) : timelines(all) {
    for (const Timeline* timeline : all) of.push_back(spans_by_device(*timeline));
  }
  std::optional<Seconds> difference(DeviceId a, DeviceId b) const {
    Seconds most = 0;
    for (std::size_t t = 0; t < of.size(); ++t) {
      const std::optional<Seconds> one = difference_of(*timelines[t], of[t][idx(a)], of[t][idx(b)]);
      if (!one) return std::nullopt;
      most = std::max(most, *one);
    }
    return most;
  }
  std::size_t count(DeviceId device) const {
    std::size_t sum = 0;
    for (const auto& of_timeline : of) sum += of_timeline[idx(device)].size();
    return sum;
  }
};

/// Evenly spaced positions of a list, its ends among them.
std::vector<std::size_t> spread(std::size_t size, std::size_t wanted) {
  std::vector<std::size_t> out;
  for (std::size_t i = 0; i < wanted; ++i) out.push_back(wanted < 2 ? 0 : i * (size - 1) / (wanted - 1));
  return out;
}

/// A name and the number that it ends with.
std::pair<std::string, std::optional<i64>> divided(const std::string& name) {
  const std::size_t end = name.find_last_not_of("0123456789") + 1;
  i64 number = 0;
  const auto [stop, code] = std::from_chars(name.data() + end, name.data() + name.size(), number);
  if (end == name.size() || code != std::errc()) return {name, std::nullopt};
  return {name.substr(0, end), number};
}

}  // namespace

std::vector<DeviceClass> device_classes(const std::vector<const Timeline*>& timelines) {
  constexpr std::size_t kCompared = 32;  // classes of a type and role, the last ones
  std::vector<DeviceClass> classes;
  if (timelines.empty()) return classes;
  const std::vector<TimelineDevice>& devices = timelines[0]->devices;
  const AllSpans spans(timelines);
  std::map<std::pair<std::string, std::string>, std::vector<std::size_t>> known;
  for (DeviceId d = 0; d < static_cast<DeviceId>(devices.size()); ++d) {
    std::vector<std::size_t>& alike = known[{devices[idx(d)].role, devices[idx(d)].type}];
    bool found = false;
    for (std::size_t i = alike.size(); !found && i > alike.size() - std::min(alike.size(), kCompared); --i) {
      DeviceClass& of = classes[alike[i - 1]];
      const std::optional<Seconds> difference = spans.difference(of.shown, d);
      if (!difference) continue;
      of.members.push_back(d);
      of.difference = std::max(of.difference, *difference);
      found = true;
    }
    if (found) continue;
    alike.push_back(classes.size());
    classes.push_back({d, {d}, 0});
  }
  return classes;
}

std::vector<DeviceClass> drawn_classes(const std::vector<const Timeline*>& timelines,
                                       std::vector<DeviceClass> classes, std::size_t most) {
  const AllSpans spans(timelines);
  constexpr std::size_t kMostDrawn = 48;
  std::size_t all = 0;
  for (const DeviceClass& of : classes) all += spans.count(of.shown);
  if (all <= most && classes.size() <= kMostDrawn) return classes;
  const double part = std::min({1.0, real(most) / real(all), real(kMostDrawn) / real(classes.size())});
  const std::vector<double> busy = busy_share(*timelines[0]);
  std::map<std::pair<std::string, std::string>, std::vector<DeviceClass>> groups;
  for (DeviceClass& of : classes) {
    const TimelineDevice& device = timelines[0]->devices[idx(of.shown)];
    groups[{device.role, device.type}].push_back(std::move(of));
  }
  std::vector<DeviceClass> out;
  for (auto& [key, group] : groups) {
    std::stable_sort(group.begin(), group.end(), [&](const DeviceClass& a, const DeviceClass& b) {
      return busy[idx(a.shown)] > busy[idx(b.shown)];
    });
    const auto wanted = static_cast<std::size_t>(part * real(group.size()));
    for (const std::size_t at :
         spread(group.size(), std::min(group.size(), std::max<std::size_t>(2, wanted))))
      out.push_back(group[at]);
  }
  std::sort(out.begin(), out.end(),
            [](const DeviceClass& a, const DeviceClass& b) { return a.shown < b.shown; });
  return out;
}

std::string name_ranges(const std::vector<std::string>& names, std::size_t most) {
  std::vector<std::string> parts;
  std::size_t named = 0;
  for (std::size_t begin = 0; begin < names.size() && parts.size() < most;) {
    const auto [stem, first] = divided(names[begin]);
    std::size_t end = begin + 1;
    while (end < names.size() && first) {
      const auto [other, number] = divided(names[end]);
      if (other != stem || number != *first + static_cast<i64>(end - begin)) break;
      ++end;
    }
    const std::size_t size = end - begin;
    parts.push_back(size == 1 ? names[begin] : names[begin] + (size == 2 ? ", " : " to ") + names[end - 1]);
    named += size;
    begin = end;
  }
  std::string text = fmt::format("{}", fmt::join(parts, ", "));
  return named == names.size() ? text : fmt::format("{} and {} more", text, names.size() - named);
}

}  // namespace hetermoe
