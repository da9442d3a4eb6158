#include "hetermoe/exec/clock.h"

#include <sys/prctl.h>

#include <algorithm>
#include <thread>

namespace hetermoe {

const std::vector<std::string>& EnumNames<ClockKind>::names() {
  static const std::vector<std::string> all = names_of_all<ClockKind>({"real", "virtual", "paced"});
  return all;
}

Seconds Clock::now() const {
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - origin_;
  return passed.count() / (kind_ == ClockKind::kPaced ? scale_ : 1);
}

Seconds Clock::finish(Seconds start, Seconds duration) const {
  if (kind_ == ClockKind::kReal) return now();
  const Seconds end = start + duration;
  if (kind_ == ClockKind::kVirtual) return end;
  // The real work may have taken longer than the emulated device would have.
  const Seconds done = now();
  if (done >= end) return done;
  sleep_until(end);
  return end;
}

void Clock::sleep_until(Seconds time) const {
  const std::chrono::duration<double> offset(time * scale_);
  const auto wake = origin_ + std::chrono::duration_cast<std::chrono::steady_clock::duration>(offset);
  // Sleeping is exact to some tens of microseconds; the rest is spun, but no longer: spinning takes the core
  // from threads that compute.
  const auto spin = std::chrono::microseconds(100);
  if (wake - std::chrono::steady_clock::now() > spin) std::this_thread::sleep_until(wake - spin);
  while (std::chrono::steady_clock::now() < wake) {
  }
}

void use_precise_sleep() { prctl(PR_SET_TIMERSLACK, 1000UL, 0UL, 0UL, 0UL); }

std::string clock_label(ClockKind kind) {
  switch (kind) {
    case ClockKind::kVirtual:
      return "executed (virtual clock, emulated)";
    case ClockKind::kPaced:
      return "executed (paced clock, emulated)";
    case ClockKind::kReal:
      break;
  }
  return "executed";
}

}  // namespace hetermoe
