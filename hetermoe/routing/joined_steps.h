#pragma once
#include <functional>

#include "hetermoe/routing/trace.h"

// Steps of a routing trace as one after another, with one of them in memory.
namespace hetermoe {

/// Calls `on_step` for each whole step from `first` to `last`, in their order. Throws InputError when there
/// are none, and when one has choices or weights of a layer of which an earlier one has none.
void for_each_joined_step(const RoutingTrace& trace, i64 first, i64 last,
                          const std::function<void(TraceStep)>& on_step);

/// Appends the sequences of `next`, with what it has of choices, weights and counts. An empty `to` becomes
/// it, and keeps its number.
void append_step(TraceStep& to, TraceStep next);

}  // namespace hetermoe
