#pragma once
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/comm/processes.h"
#include "hetermoe/train/checkpoint/checkpoint.h"

namespace hetermoe {

/// Where a run with this output folder keeps its checkpoints.
std::filesystem::path checkpoint_folder(const std::filesystem::path& output);

/// The checkpoint that a folder is, or the newest one of a run with this output folder; `on_broken` hears of
/// others. None: it is neither.
std::optional<FoundCheckpoint> checkpoint_in(const std::filesystem::path& folder,
                                             const std::function<void(const std::string&)>& on_broken);

/// How a run goes on from what is in its folder of checkpoints.
struct Resumed {
  std::optional<FoundCheckpoint> checkpoint;  ///< whose tensors the states now have
  std::vector<std::string> notes;             ///< what the user should know of it
};

/// How a rank looks for the checkpoint that rank 0 has chosen.
struct ResumeOptions {
  /// File systems of a network may show a rank yesterday's folder for a while.
  Seconds visible_within = 90;
  std::function<FoundCheckpoint(const std::filesystem::path&)> look = read_checkpoint;
};

/// Loads the newest checkpoint that all ranks can read; collective. Rank 0 says which there are, and no rank
/// ever loads another: one that does not see it within the limit ends the run. Throws IoError then, and when
/// there are checkpoints and none can be read.
Resumed load_newest(const std::filesystem::path& folder, const ModelConfig& model,
                    const std::vector<DeviceState*>& states, const Processes& processes,
                    const ResumeOptions& options = {});

/// The peak learning rate of the newest checkpoint of a run with this output folder, as rank 0 sees it; none:
/// there is no checkpoint. Collective.
std::optional<double> learning_rate_of_checkpoint(const std::filesystem::path& output,
                                                  const Processes& processes);

/// Keys of a resolved job that affect the training and differ from another job: "train.seed is 2, it was 1".
std::vector<std::string> job_differences(const Json& before, const Json& now);

/// A plan in a few words: "zebra on devices 0, 1, 2, 3 (4 microbatches)".
std::string plan_text(const Json& plan);

}  // namespace hetermoe
