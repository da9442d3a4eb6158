#include "hetermoe/planner/search/neighbours.h"

#include <algorithm>
#include <set>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// Whether so many devices of a group can compute attention: some, and not all where experts stand apart.
bool can_attend(const SketchGroup& group, i64 count) {
  return count > 0 && (group.mixed || count != sum_of(group.count));
}

/// Whether a group of this shape can have `count` attention devices of class `cls`.
bool can_have(const SketchGroup& group, std::size_t cls, i64 count) {
  return count >= 0 && count <= group.count[cls] &&
         can_attend(group, sum_of(group.attention) - group.attention[cls] + count);
}

}  // namespace

std::vector<i64> neighbour_counts(const SketchGroup& group, i64 limit) {
  const i64 now = group.microbatches, most = std::min(group.sequences, limit);
  std::vector<i64> counts;
  for (const i64 step : {-1, 1}) {
    for (i64 count = now + step; count >= 1 && count <= most; count += step) {
      if (group.sequences % count != 0) continue;
      counts.push_back(count);
      break;
    }
  }
  for (const i64 count : {now - 1, now + 1, 2 * now, now / 2}) {
    if (count >= 1 && count <= most) counts.push_back(count);
  }
  return counts;
}

namespace {

/// Changes every group that is alike to group `kind` in the same way.
template <class Change>
Sketch with_kind(const Sketch& sketch, std::size_t kind, Change change) {
  Sketch next = sketch;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    if (alike(sketch.groups[g], sketch.groups[kind])) change(next.groups[g]);
  }
  return next;
}

void add_of_kind(const Sketch& sketch, std::size_t kind, i64 max_microbatches, std::vector<Sketch>& all) {
  const SketchGroup& group = sketch.groups[kind];
  for (const i64 count : neighbour_counts(group, max_microbatches))
    all.push_back(with_kind(sketch, kind, [&](SketchGroup& g) { g.microbatches = count; }));
  for (std::size_t cls = 0; cls < group.count.size(); ++cls) {
    for (const i64 count : {group.attention[cls] + 1, group.attention[cls] - 1}) {
      if (can_have(group, cls, count))
        all.push_back(with_kind(sketch, kind, [&](SketchGroup& g) { g.attention[cls] = count; }));
    }
  }
}

}  // namespace

namespace {

/// Group numbers that are the first of their kind.
std::vector<std::size_t> kinds_of(const Sketch& sketch) {
  std::vector<std::size_t> kinds;
  for (std::size_t g = 0; g < sketch.groups.size(); ++g) {
    const bool known = std::any_of(kinds.begin(), kinds.end(), [&](std::size_t kind) {
      return alike(sketch.groups[kind], sketch.groups[g]);
    });
    if (!known) kinds.push_back(g);
  }
  return kinds;
}

/// Devices with attention where a class has `count`: as many as before, or all if all had; a first device may
/// have experts alone.
std::set<i64> resized(const SketchGroup& group, std::size_t cls, i64 count) {
  if (group.count[cls] == 0) return {0, count};
  const i64 now = group.attention[cls];
  return {now == group.count[cls] ? count : std::min(now, count)};
}

}  // namespace

std::vector<Sketch> other_devices(const Rates& rates, const Sketch& sketch) {
  std::vector<Sketch> all;
  for (const std::size_t kind : kinds_of(sketch)) {
    const SketchGroup& group = sketch.groups[kind];
    for (std::size_t c = 0; c < group.count.size(); ++c) {
      const DeviceClass& cls = rates.classes()[c];
      const auto per_node = static_cast<i64>(cls.per_node);
      const i64 now = group.count[c];
      const bool has_more = sketch.groups.size() == 1 && now < cls.size();
      for (const i64 count : std::set<i64>{now - 1, now / per_node * per_node, has_more ? now + 1 : now}) {
        if (count < 0 || count == now) continue;
        for (const i64 attention : resized(group, c, count)) {
          Sketch next = with_kind(sketch, kind,
                                  [&](SketchGroup& g) { g.count[c] = count, g.attention[c] = attention; });
          if (can_attend(next.groups[kind], sum_of(next.groups[kind].attention)))
            all.push_back(std::move(next));
        }
      }
    }
  }
  return all;
}

std::vector<Sketch> neighbours(const Sketch& sketch, i64 max_microbatches) {
  std::vector<Sketch> all;
  const auto add = [&](auto change) {
    Sketch next = sketch;
    change(next);
    all.push_back(std::move(next));
  };
  if (std::any_of(sketch.groups.begin(), sketch.groups.end(),
                  [](const SketchGroup& group) { return group.mixed; })) {
    for (const double factor : {0.97, 1.03, 0.9, 1.1}) add([&](Sketch& s) { s.bias *= factor; });
  }
  const bool by_part = sketch.rounding == Rounding::kByPart;
  add([&](Sketch& s) { s.rounding = by_part ? Rounding::kByDevice : Rounding::kByPart; });
  for (const std::size_t kind : kinds_of(sketch)) add_of_kind(sketch, kind, max_microbatches, all);
  return all;
}

}  // namespace hetermoe
