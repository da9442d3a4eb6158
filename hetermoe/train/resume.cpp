#include "hetermoe/train/resume.h"

namespace hetermoe {
namespace {

/// True when every rank has read its part.
bool load_everywhere(const FoundCheckpoint& checkpoint, const ModelConfig& model,
                     const std::vector<DeviceState*>& states, const Processes& processes,
                     std::string& error) {
  std::string mine;
  try {
    load_checkpoint(checkpoint, model, states);
  } catch (const IoError& failed) {
    mine = failed.what();
  }
  for (const std::string& text : processes.gather(mine)) {
    if (!text.empty()) error = text;
  }
  return error.empty();
}

}  // namespace

Resumed load_newest(const std::filesystem::path& folder, const ModelConfig& model,
                    const std::vector<DeviceState*>& states, const Processes& processes) {
  Resumed out;
  const auto broken = [&](const std::string& text) {
    out.notes.push_back("passed over a checkpoint: " + text);
  };
  const std::vector<FoundCheckpoint> found = find_checkpoints(folder, broken);
  for (const FoundCheckpoint& checkpoint : found) {
    std::string error;
    if (!load_everywhere(checkpoint, model, states, processes, error)) {
      broken(error);
      continue;
    }
    out.checkpoint = checkpoint;
    out.notes.push_back(fmt::format("went on from {}", checkpoint.path.string()));
    return out;
  }
  if (!found.empty()) {
    fail<IoError>(folder.string(), "no checkpoint can be read: {}. To begin anew: --checkpoint.resume false",
                  out.notes.back());
  }
  return out;
}

}  // namespace hetermoe
