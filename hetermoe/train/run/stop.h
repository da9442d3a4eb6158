#pragma once
#include <atomic>

#include "hetermoe/base/types.h"

// How a run is asked to end early.
namespace hetermoe {

/// Set by Ctrl-C (and by tests); runs end after the current step, with their results written.
extern std::atomic<bool> stop_requested;
/// Until stop_on_interrupt(), kStopSignals end the process at once, with a line that says so.
void end_on_interrupt();
/// Makes kStopSignals set stop_requested; a second SIGINT, over half a second later, ends the process at
/// once.
void stop_on_interrupt();
/// The signal that set stop_requested, 1 when it was set without one; 0 = no stop is requested.
i32 stop_asked();

}  // namespace hetermoe
