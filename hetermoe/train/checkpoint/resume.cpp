#include "hetermoe/train/checkpoint/resume.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "hetermoe/base/words.h"
#include "hetermoe/train/checkpoint/shared_folder.h"
#include "hetermoe/train/job/job.h"
#include "hetermoe/train/session/session.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

/// A checkpoint by its folder's name and the checksum of its checkpoint.json.
struct Choice {
  std::string name, checksum;
};

/// The checkpoints that rank 0 sees, newest first, and what is wrong with others; collective.
std::vector<Choice> choices_of_rank_0(const fs::path& folder, const Processes& processes,
                                      std::vector<std::string>& broken) {
  Json mine = {{"whole", Json::array()}, {"broken", Json::array()}};
  if (processes.rank() == 0) {
    const auto on_broken = [&](const std::string& text) { mine["broken"].push_back(text); };
    for (const FoundCheckpoint& found : find_checkpoints(folder, on_broken))
      mine["whole"].push_back({found.path.filename().string(), found.checksum});
  }
  const Json all =
      Json::parse(processes.gather(mine.dump(-1, ' ', false, Json::error_handler_t::replace)).front());
  all.at("broken").get_to(broken);
  std::vector<Choice> choices;
  for (const Json& one : all.at("whole")) choices.push_back({.name = one.at(0), .checksum = one.at(1)});
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

/// A run that was hours old must not be begun anew without a word.
[[noreturn]] void refuse_to_begin_anew(const fs::path& folder, const std::vector<std::string>& broken) {
  fail<IoError>(
      folder.string(),
      "has {}, of which none can be read: {}. Mend or move what is there, or begin anew at step 1 by "
      "--no-checkpoint.resume",
      counted(broken.size(), "checkpoint"), fmt::join(broken, "; "));
}

}  // namespace

fs::path checkpoint_folder(const fs::path& output) { return output / "checkpoints"; }

std::optional<FoundCheckpoint> checkpoint_in(const fs::path& folder,
                                             const std::function<void(const std::string&)>& on_broken) {
  if (fs::exists(folder / "checkpoint.json")) return read_checkpoint(folder);
  std::vector<FoundCheckpoint> found = find_checkpoints(checkpoint_folder(folder), on_broken);
  return found.empty() ? std::nullopt : std::optional(std::move(found.front()));
}

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
  if (!out.checkpoint && !broken.empty()) refuse_to_begin_anew(folder, broken);
  for (const std::string& text : broken) out.notes.push_back("passes over a checkpoint: " + text);
  if (out.checkpoint) {
    out.notes.push_back(
        fmt::format("goes on from {}, step {}", out.checkpoint->path.string(), out.checkpoint->info.step));
  }
  return out;
}

std::optional<double> learning_rate_of_checkpoint(const fs::path& output, const Processes& processes) {
  Json mine = nullptr;
  if (processes.rank() == 0) {
    const Json::json_pointer key("/train/learning_rate");
    const auto found = find_checkpoints(checkpoint_folder(output), [](const std::string&) {});
    if (!found.empty() && found[0].info.job.contains(key)) mine = found[0].info.job[key];
  }
  const Json rate = Json::parse(processes.gather(mine.dump()).front());
  return rate.is_number() ? std::optional(rate.get<double>()) : std::nullopt;
}

std::vector<std::string> job_differences(const Json& before, const Json& now) {
  // These decide what is done beside the training, or where.
  static const std::vector<std::string> kBeside = {"output",          "run.",
                                                   "clock.",          "checkpoint.",
                                                   "train.log_every", "train.validate_every",
                                                   "train.preflight", "train.validation_sequences",
                                                   "train.save_hf",   "train.save_dtype"};
  std::vector<std::string> differences;
  for (const FieldDoc& key : job_fields()) {
    if (std::any_of(kBeside.begin(), kBeside.end(),
                    [&](const auto& part) { return key.name.starts_with(part); }))
      continue;
    const Json::json_pointer pointer = pointer_of(key);
    if (!before.contains(pointer) || !now.contains(pointer) || before[pointer] == now[pointer]) continue;
    differences.push_back(
        fmt::format("{} is {}, it was {}", key.name, now[pointer].dump(), before[pointer].dump()));
  }
  return differences;
}

std::string plan_text(const Json& json) {
  try {
    const Plan plan = plan_from_json(json, "plan");
    return fmt::format("{} on {} {} ({} in {})", plan.strategy,
                       agree(devices_of(plan).size(), "device", "devices"), fmt::join(devices_of(plan), ", "),
                       counted(total_sequences(plan), "sequence"),
                       counted(plan.groups.at(0).microbatches.size(), "microbatch"));
  } catch (const std::exception&) {
    return "one that cannot be read";
  }
}

}  // namespace hetermoe
