#pragma once
#include <optional>
#include <vector>

#include "hetermoe/timeline/timeline.h"

namespace hetermoe {

inline constexpr OpId kNoOp = -1;

/// A piece of the chain of ops that decided when something could start.
struct PathPiece {
  OpId op = kNoOp;      ///< kNoOp: nothing ran that is known
  DeviceId device = 0;  ///< of a transfer: one that came last
  Seconds start = 0, end = 0;
};

/// Follows a timeline backwards: from an op to the op that ended last before it could start, on any of its
/// devices, and so on. An op had to wait for the op before it on each of its lanes and for TimelineOp::after.
/// In a timeline without those it waited for the op that ended last on one of its devices. Among equals, ops
/// of compute lanes come first. A transfer starts when its last device has entered it. Times that differ by
/// less than a millionth of the step count as equal, because the clocks of devices do. An object serves one
/// thread.
class CriticalPath {
 public:
  /// Keeps a reference to the timeline.
  explicit CriticalPath(const Timeline& timeline);

  /// The pieces, latest first, that fill the time from `from` to the start of the op of this span (an index
  /// into Timeline::spans).
  std::vector<PathPiece> before(std::size_t span, Seconds from) const;
  /// Those of the whole step, latest first.
  std::vector<PathPiece> of_step() const;

  /// When all devices of the op had entered it.
  Seconds started(OpId op) const { return started_[static_cast<std::size_t>(op)]; }
  Seconds slack() const { return slack_; }

 private:
  static constexpr std::size_t kNone = static_cast<std::size_t>(-1);
  std::size_t predecessor(OpId op, Seconds time) const;
  std::size_t find_predecessor(OpId op, Seconds time) const;
  std::size_t span_on(OpId op, DeviceId device) const;
  std::size_t last_ended(DeviceId device, Seconds time, OpId except) const;
  bool is_later(std::size_t a, std::size_t b) const;
  bool computes(std::size_t span) const;

  const Timeline& timeline_;
  Seconds slack_;
  bool knows_after_;
  std::vector<Seconds> started_;  // [op]
  // [op] what ended last before it, once it was asked for: transfers among many devices are costly to look
  // at.
  mutable std::vector<std::optional<std::size_t>> predecessors_;
  std::vector<std::size_t> op_begin_, op_spans_;  // [op + 1] into spans of the op by device
  std::vector<std::size_t> lane_previous_;        // [span]
  std::vector<std::vector<std::size_t>> by_end_;  // [device] spans, where `after` is not known
};

}  // namespace hetermoe
