#pragma once
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/train/checkpoint.h"

namespace hetermoe {

/// How a run goes on from what is in its folder of checkpoints.
struct Resumed {
  std::optional<FoundCheckpoint> checkpoint;  ///< whose tensors the states now have
  std::vector<std::string> notes;             ///< what the user should know of it
};

/// Loads the newest checkpoint that all ranks can read; collective. Throws IoError when there are checkpoints
/// and none can be read.
Resumed load_newest(const std::filesystem::path& folder, const ModelConfig& model,
                    const std::vector<DeviceState*>& states, const Processes& processes);

}  // namespace hetermoe
