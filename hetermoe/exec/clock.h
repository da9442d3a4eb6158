#pragma once
#include <chrono>
#include <string>
#include <vector>

#include "hetermoe/base/enum_count.h"
#include "hetermoe/base/fields.h"

namespace hetermoe {

/// real: spans are what happened. virtual: spans as if every op had taken its cost-model time; nothing waits.
/// paced: every op really lasts its cost-model time (times a scale), so a run here has the proportions of the
/// cluster.
enum class ClockKind { kReal, kVirtual, kPaced };
template <>
struct EnumNames<ClockKind> {
  static const std::vector<std::string>& names();
};

/// Time of a step. All times are seconds since the step's start; under paced they are emulated seconds.
class Clock {
 public:
  Clock(ClockKind kind, double scale) : kind_(kind), scale_(scale) {}

  ClockKind kind() const { return kind_; }
  bool needs_durations() const { return kind_ != ClockKind::kReal; }
  double scale() const { return scale_; }
  void set_scale(double scale) { scale_ = scale; }
  void start_step() { origin_ = std::chrono::steady_clock::now(); }
  Seconds now() const;

  /// When an op starts that was ready at `ready` (end of its dependencies and lane predecessors).
  Seconds start(Seconds ready) const { return kind_ == ClockKind::kReal ? now() : ready; }
  /// Ends an op that started at `start` and should last `duration`; under paced this call lasts until then.
  Seconds finish(Seconds start, Seconds duration) const;

 private:
  void sleep_until(Seconds time) const;

  ClockKind kind_;
  double scale_;  ///< real seconds per emulated second, paced only
  std::chrono::steady_clock::time_point origin_;
};

/// Timer slack of one microsecond for the calling thread; sleeps are off by 50 us otherwise.
void use_precise_sleep();

/// Name of the time in labels: "executed", "executed (virtual clock, emulated)", ...
std::string clock_label(ClockKind kind);

}  // namespace hetermoe
