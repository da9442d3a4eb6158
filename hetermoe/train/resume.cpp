#include "hetermoe/train/resume.h"

#include "hetermoe/train/shared_folder.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// A checkpoint by its folder's name and the checksum of its checkpoint.json.
struct Choice {
  std::string name, checksum;
};

/// The checkpoints that rank 0 sees, newest first; collective.
std::vector<Choice> choices_of_rank_0(const fs::path& folder, const Processes& processes,
                                      std::vector<std::string>& broken) {
  Json mine = Json::array();
  if (processes.rank() == 0) {
    const auto on_broken = [&](const std::string& text) { broken.push_back(text); };
    for (const FoundCheckpoint& found : find_checkpoints(folder, on_broken))
      mine.push_back({found.path.filename().string(), found.checksum});
  }
  std::vector<Choice> choices;
  for (const Json& one : Json::parse(processes.gather(mine.dump()).front()))
    choices.push_back({.name = one.at(0), .checksum = one.at(1)});
  return choices;
}

/// The checkpoint as this rank sees it, once it is the one that was chosen.
std::optional<FoundCheckpoint> see(const fs::path& path, const Choice& choice, const ResumeOptions& options) {
  std::optional<FoundCheckpoint> seen;
  const auto is_there = [&] {
    try {
      seen = options.look(path);
    } catch (const IoError&) {
      return false;
    }
    return seen->checksum == choice.checksum;
  };
  if (!wait_until(is_there, options.visible_within)) return std::nullopt;
  return seen;
}

/// How the loading of a checkpoint ended on a rank.
struct Loaded {
  bool seen = true;
  std::string error;  ///< empty = loaded
};

Loaded load(const std::optional<FoundCheckpoint>& checkpoint, const ModelConfig& model,
            const std::vector<DeviceState*>& states) {
  if (!checkpoint) return {.seen = false, .error = ""};
  try {
    load_checkpoint(*checkpoint, model, states);
  } catch (const IoError& failed) {
    return {.seen = true, .error = failed.what()};
  }
  return {};
}

/// The first error of any rank; collective. Throws IoError when a rank does not see what rank 0 has chosen.
std::string error_of_any(const Processes& processes, const Loaded& mine, const fs::path& path,
                         const ResumeOptions& options) {
  const Json told = {{"seen", mine.seen}, {"error", mine.error}, {"host", host_name()}};
  std::string error;
  const std::vector<std::string> all = processes.gather(told.dump());
  for (std::size_t r = 0; r < all.size(); ++r) {
    const Json one = Json::parse(all[r]);
    if (!one.at("seen").get<bool>()) {
      fail<IoError>(
          path.string(),
          "rank {} on {} has not seen this checkpoint within {:.3g} s, from which rank 0 goes on. Is "
          "the folder shared by all hosts?",
          r, one.at("host").get<std::string>(), options.visible_within);
    }
    if (error.empty()) error = one.at("error");
  }
  return error;
}

}  // namespace

Resumed load_newest(const fs::path& folder, const ModelConfig& model, const std::vector<DeviceState*>& states,
                    const Processes& processes, const ResumeOptions& options) {
  Resumed out;
  std::vector<std::string> broken;
  const std::vector<Choice> choices = choices_of_rank_0(folder, processes, broken);
  for (const Choice& choice : choices) {
    const fs::path path = folder / choice.name;
    const std::optional<FoundCheckpoint> seen = see(path, choice, options);
    const std::string error = error_of_any(processes, load(seen, model, states), path, options);
    if (error.empty()) {
      out.checkpoint = seen;
      break;
    }
    broken.push_back(error);
  }
  for (const std::string& text : broken) out.notes.push_back("passed over a checkpoint: " + text);
  if (out.checkpoint) {
    out.notes.push_back(fmt::format("went on from {}", out.checkpoint->path.string()));
  } else if (!choices.empty()) {
    fail<IoError>(folder.string(), "no checkpoint can be read: {}. To begin anew: --checkpoint.resume false",
                  out.notes.back());
  }
  return out;
}

}  // namespace hetermoe
