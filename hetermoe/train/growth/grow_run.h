#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/model/growth.h"
#include "hetermoe/train/checkpoint/checkpoint.h"

// A run goes on with more experts: its checkpoint grows between two steps.
namespace hetermoe {

/// The checkpoint as the grown model has it: weights and masters by the growth, moments by growth.moments,
/// all else of the run (step, data, loss scale) as it was. Each tensor is read and made in its turn, from
/// files that stay open as long as the shard lives. Throws IoError when bytes are damaged, then too.
CheckpointShard grow_checkpoint(const FoundCheckpoint& from, const Growth& growth);

/// The checkpoint as the model has it that grew by `growth` (plan_shrink): instances are merged
/// (weights/merge.h), all else as above. Throws ConfigError when some are not alike, or IoError.
CheckpointShard shrink_checkpoint(const FoundCheckpoint& from, const Growth& growth, double least_cosine);

/// Files and notes of a grown run.
struct GrownRun {
  std::filesystem::path checkpoint, job;
  std::vector<std::string> notes;  ///< what of the job is not as it was
};

/// Throws ConfigError when the folder is there and not empty.
void check_grown_output(const std::filesystem::path& output);

/// Makes the output folder of a run that goes on from the grown checkpoint: checkpoints/, model.json, and
/// job.json, by which `hetermoe train` goes on. Whole or not at all. Throws ConfigError when the disk has no
/// room for it, or IoError.
GrownRun write_grown_run(const FoundCheckpoint& from, const Growth& growth,
                         const std::filesystem::path& output);
/// The same of a checkpoint that has grown or shrunk.
GrownRun write_changed_run(CheckpointShard shard, const std::filesystem::path& output);

}  // namespace hetermoe
