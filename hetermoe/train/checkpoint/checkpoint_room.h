#pragma once
#include <filesystem>
#include <string>

#include "hetermoe/comm/processes.h"
#include "hetermoe/train/checkpoint/checkpoint.h"
#include "hetermoe/train/job/job.h"

// Whether a disk can hold what a run will write. Rank 0 looks, for all write into one folder.
namespace hetermoe {

/// Bytes of the parts of all ranks; collective.
Bytes bytes_of_all(const CheckpointShard& mine, const Processes& processes);

/// lack_of_room() for one checkpoint more; collective.
std::string lack_of_room_for(Bytes checkpoint, const std::filesystem::path& folder,
                             const Processes& processes);

/// The most bytes of checkpoints that a run has on its disk during the next steps: those that it keeps and
/// the one that it is writing. there: checkpoints that are there already, which count. checkpoint: bytes of
/// each. 0: it writes none.
Bytes most_checkpoint_bytes(const CheckpointOptions& options, i64 steps, i64 there, Bytes checkpoint);

/// Throws ConfigError when the folder of checkpoints has no room for so many bytes of `what`. Checkpoints
/// that are there count as room where the run goes on from them: they make way. Collective.
void check_checkpoint_room(const Job& job, Bytes most, const char* what, const Processes& processes);

}  // namespace hetermoe
