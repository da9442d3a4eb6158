#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/train/checkpoint/checkpoint.h"

// How checkpoints get and lose their names in the folder of a run.
namespace hetermoe {

/// "step-00000120"
std::string checkpoint_name(i64 step);

/// Paths in a folder with the name of a checkpoint, oldest first; empty when there is no folder.
std::vector<std::filesystem::path> checkpoint_paths(const std::filesystem::path& folder);

/// Gives a finished folder the name of its checkpoint. One of the same run and step gives way to it. If the
/// program is killed at any moment, one of the two has the name, or recover_checkpoints() finds it. A folder
/// of another run, or of no run, is set aside. Throws std::filesystem::filesystem_error or IoError.
void publish_checkpoint(const std::filesystem::path& unfinished, const std::filesystem::path& folder,
                        const CheckpointInfo& info);

/// Removes all but the newest `keep` of this run: what another has left in the folder is not ours to remove.
void remove_older(const std::filesystem::path& folder, i64 keep, const std::string& run);

}  // namespace hetermoe
