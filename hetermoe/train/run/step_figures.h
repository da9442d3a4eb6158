#pragma once
#include "hetermoe/train/run/run_state.h"

// The figures of a step that has ended: those of this rank, and those of all.
namespace hetermoe {

/// Completes the record by what this rank knows: RunState::last, the timeline, memory. The caller has set
/// step, learning_rate, tokens_hash and wall_s.
void add_figures(RunState& run, StepRecord& record);

/// The report of this rank on the step to the others.
StepReport report_of(const RunState& run, const StepRecord& record);

/// Completes the record by what all ranks together know.
void add_figures_of_all(const RunState& run, const StepReport& all, StepRecord& record);

/// The last step on all devices. Collective.
Timeline whole_timeline(const RunState& run);

}  // namespace hetermoe
