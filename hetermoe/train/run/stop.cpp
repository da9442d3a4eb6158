#include "hetermoe/train/run/stop.h"

#include <time.h>
#include <unistd.h>

#include <csignal>
#include <cstring>

#include "hetermoe/train/session/presence.h"

namespace hetermoe {

std::atomic<bool> stop_requested = false;

static std::atomic<i32> stop_signal = SIGINT;  // of a stop that no signal asked for, too

i32 stop_asked() { return stop_requested ? stop_signal.load() : 0; }

/// Of the monotonic clock, which a signal handler may ask.
static i64 milliseconds() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return i64{now.tv_sec} * 1000 + now.tv_nsec / 1'000'000;
}

/// A launcher, a queue or `kill` on a whole group may send one Ctrl-C twice.
constexpr i64 kSameSignal = 500;  // milliseconds
static std::atomic<i64> interrupted_at = -1;

static void ask_to_stop(int signal) {
  const i64 now = milliseconds();
  if (signal == SIGINT && interrupted_at >= 0 && now - interrupted_at > kSameSignal) {
    std::signal(SIGINT, SIG_DFL);
    std::raise(SIGINT);
    return;
  }
  if (signal == SIGINT && interrupted_at < 0) interrupted_at = now;
  stop_signal = signal;
  stop_requested = true;
  Presence::tell_stopped();
}

/// By calls that a signal handler may make.
static void say_and_end(int signal) {
  for (const char* part : {"interrupted by SIG", ::sigabbrev_np(signal), " before the first step\n"}) {
    if (::write(STDERR_FILENO, part, std::strlen(part)) < 0) break;
  }
  std::signal(signal, SIG_DFL);
  std::raise(signal);
}

static void on_stop_signals(void (*handler)(int)) {
  for (const int signal : kStopSignals) {
    const bool ignored = std::signal(signal, handler) == SIG_IGN;
    if (ignored && signal == SIGHUP) std::signal(SIGHUP, SIG_IGN);  // as nohup wants it
  }
}

void end_on_interrupt() { on_stop_signals(say_and_end); }

void stop_on_interrupt() { on_stop_signals(ask_to_stop); }

}  // namespace hetermoe
