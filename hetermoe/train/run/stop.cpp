#include "hetermoe/train/run/stop.h"

#include <csignal>

#include "hetermoe/train/session/presence.h"

namespace hetermoe {

std::atomic<bool> stop_requested = false;

static std::atomic<i32> stop_signal = SIGINT;  // of a stop that no signal asked for, too

i32 stop_asked() { return stop_requested ? stop_signal.load() : 0; }

static void ask_to_stop(int signal) {
  stop_signal = signal;
  stop_requested = true;
  Presence::tell_stopped();
  if (signal == SIGINT) std::signal(SIGINT, SIG_DFL);
}

void stop_on_interrupt() {
  for (const int signal : kStopSignals) {
    const bool ignored = std::signal(signal, ask_to_stop) == SIG_IGN;
    if (ignored && signal == SIGHUP) std::signal(SIGHUP, SIG_IGN);  // as nohup wants it
  }
}

}  // namespace hetermoe
