#include "hetermoe/timeline/critical_path.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {

CriticalPath::CriticalPath(const Timeline& timeline)
    : timeline_(timeline),
      slack_(1e-6 * timeline.step),
      knows_after_(std::any_of(timeline.ops.begin(), timeline.ops.end(),
                               [](const TimelineOp& op) { return !op.after.empty(); })),
      started_(timeline.ops.size(), 0),
      predecessors_(timeline.ops.size()),
      op_begin_(timeline.ops.size() + 1, 0),
      op_spans_(timeline.spans.size()),
      lane_previous_(timeline.spans.size(), kNone),
      by_end_(timeline.devices.size()) {
  const std::vector<Span>& spans = timeline.spans;
  const auto queue = [&](std::size_t i) -> const std::string& {
    return timeline.ops[idx(spans[i].op)].queue;
  };
  for (std::size_t i = 0; i < spans.size(); ++i) {
    started_[idx(spans[i].op)] = std::max(started_[idx(spans[i].op)], spans[i].start);
    ++op_begin_[idx(spans[i].op) + 1];
    if (i > 0 && spans[i - 1].device == spans[i].device && queue(i - 1) == queue(i))
      lane_previous_[i] = i - 1;
    if (!knows_after_) by_end_[idx(spans[i].device)].push_back(i);
  }
  for (std::size_t op = 0; op < timeline.ops.size(); ++op) op_begin_[op + 1] += op_begin_[op];
  std::vector<std::size_t> next = op_begin_;
  for (std::size_t i = 0; i < spans.size(); ++i) op_spans_[next[idx(spans[i].op)]++] = i;  // devices ascend
  for (std::vector<std::size_t>& list : by_end_) {
    std::stable_sort(list.begin(), list.end(),
                     [&](std::size_t a, std::size_t b) { return spans[a].end < spans[b].end; });
  }
}

bool CriticalPath::computes(std::size_t span) const {
  return timeline_.ops[idx(timeline_.spans[span].op)].queue == "compute";
}

bool CriticalPath::is_later(std::size_t a, std::size_t b) const {
  if (a == kNone || b == kNone) return b == kNone && a != kNone;
  const Seconds difference = timeline_.spans[a].end - timeline_.spans[b].end;
  if (std::abs(difference) > slack_) return difference > 0;
  if (computes(a) != computes(b)) return computes(a);
  return difference > 0;
}

std::size_t CriticalPath::span_on(OpId op, DeviceId device) const {
  const auto begin = op_spans_.begin() + static_cast<std::ptrdiff_t>(op_begin_[idx(op)]);
  const auto end = op_spans_.begin() + static_cast<std::ptrdiff_t>(op_begin_[idx(op) + 1]);
  const auto found = std::lower_bound(begin, end, device, [&](std::size_t span, DeviceId wanted) {
    return timeline_.spans[span].device < wanted;
  });
  return found != end && timeline_.spans[*found].device == device ? *found : kNone;
}

std::size_t CriticalPath::last_ended(DeviceId device, Seconds time, OpId except) const {
  const std::vector<std::size_t>& list = by_end_[idx(device)];
  auto after =
      std::upper_bound(list.begin(), list.end(), time + slack_,
                       [&](Seconds limit, std::size_t span) { return limit < timeline_.spans[span].end; });
  std::size_t last = kNone;
  // Only those within the slack of the last one compete with it.
  for (; after != list.begin(); --after) {
    const std::size_t span = *std::prev(after);
    if (last != kNone && timeline_.spans[span].end < timeline_.spans[last].end - slack_) break;
    if (timeline_.spans[span].op != except && is_later(span, last)) last = span;
  }
  return last;
}

/// The last to end of what the op waited for.
std::size_t CriticalPath::predecessor(OpId op, Seconds time) const {
  if (time != started_[idx(op)]) return find_predecessor(op, time);
  std::optional<std::size_t>& known = predecessors_[idx(op)];
  if (!known) known = find_predecessor(op, time);
  return *known;
}

std::size_t CriticalPath::find_predecessor(OpId op, Seconds time) const {
  std::size_t last = kNone;
  const auto look_at = [&](std::size_t span) {
    if (span != kNone && is_later(span, last)) last = span;
  };
  for (std::size_t i = op_begin_[idx(op)]; i < op_begin_[idx(op) + 1]; ++i) {
    const DeviceId device = timeline_.spans[op_spans_[i]].device;
    look_at(lane_previous_[op_spans_[i]]);
    for (const OpId earlier : timeline_.ops[idx(op)].after) look_at(span_on(earlier, device));
    if (!knows_after_) look_at(last_ended(device, time, op));
  }
  return last;
}

std::vector<PathPiece> CriticalPath::before(std::size_t span, Seconds from) const {
  std::vector<PathPiece> pieces;
  Seconds time = started(timeline_.spans[span].op);
  // Ops that take no time could lead in a circle where it is not known what waits for what.
  for (std::size_t steps = 0; time > from && steps < timeline_.spans.size(); ++steps) {
    const std::size_t earlier = predecessor(timeline_.spans[span].op, time);
    const Seconds ended = earlier == kNone ? 0 : std::min(timeline_.spans[earlier].end, time);
    if (time - std::max(ended, from) > slack_)
      pieces.push_back({kNoOp, timeline_.spans[span].device, std::max(ended, from), time});
    if (earlier == kNone || ended <= from) break;
    const OpId op = timeline_.spans[earlier].op;
    const Seconds began = std::min(started(op), ended);
    pieces.push_back({op, timeline_.spans[earlier].device, std::max(began, from), ended});
    time = began;
    span = earlier;
  }
  return pieces;
}

std::vector<PathPiece> CriticalPath::of_step() const {
  const std::vector<Span>& spans = timeline_.spans;
  const auto last = std::max_element(spans.begin(), spans.end(),
                                     [](const Span& a, const Span& b) { return a.end < b.end; });
  if (last == spans.end()) return {};
  std::vector<PathPiece> pieces = {{last->op, last->device, started(last->op), last->end}};
  const std::vector<PathPiece> rest = before(static_cast<std::size_t>(last - spans.begin()), 0);
  pieces.insert(pieces.end(), rest.begin(), rest.end());
  return pieces;
}

}  // namespace hetermoe
