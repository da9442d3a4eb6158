#pragma once
#include <functional>

namespace hetermoe {

/// Calls the program where it has the stack that programs usually have (8 MiB), whatever the limit of the
/// process (`ulimit -s`): on this thread where the hard limit allows it, else on a thread of its own. Threads
/// that begin later have it, too. Returns what the program returns, which must not throw. Call once, on the
/// main thread.
int with_stack_room(const std::function<int()>& program);

}  // namespace hetermoe
