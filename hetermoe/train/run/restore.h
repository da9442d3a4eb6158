#pragma once
#include "hetermoe/train/run/run_state.h"

// From which weights a run goes on.
namespace hetermoe {

/// Weights of a run that does not go on from a checkpoint: drawn, or those of train.init_from.
void start_weights(RunState& run);

/// Goes on from the newest checkpoint of the output folder that can be read, if there is one and
/// checkpoint.resume says so: TrainOutcome::first_step. Collective. Throws as load_newest() does.
void resume(RunState& run);

/// The run as it was after the checkpoint, or at its start when there is none. Returns the steps done.
/// Collective.
i64 go_back_to(RunState& run, const std::optional<FoundCheckpoint>& checkpoint);

}  // namespace hetermoe
