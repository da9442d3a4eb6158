#include "hetermoe/train/checkpoint/checkpoint_folder.h"

#include <algorithm>

#include "hetermoe/base/file_system.h"
#include "hetermoe/base/words.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

// Folders of ours that are no checkpoints (any more). Names of users begin with no dot.
const std::string kStep = "step-";
const std::string kReplaced = ".old-";  ///< had the name until another came: whole
const std::string kRemoved = ".gone-";  ///< perhaps in part

fs::path hidden(const fs::path& checkpoint, const std::string& prefix) {
  return checkpoint.parent_path() / (prefix + checkpoint.filename().string());
}

/// Under a name that is no checkpoint's: whoever is interrupted leaves no part of one.
void remove_checkpoint(const fs::path& path) {
  const fs::path gone = hidden(path, kRemoved);
  fs::remove_all(gone);
  fs::rename(path, gone);
  fs::remove_all(gone);
}

/// In that folder, without hiding anything that was moved there before.
fs::path free_name(const fs::path& folder, const std::string& name) {
  fs::path path = folder / name;
  for (int i = 2; fs::exists(path); ++i) path = folder / fmt::format("{}-{}", name, i);
  return path;
}

/// Moves checkpoints into a folder beside the others, where no run looks for them.
fs::path set_aside(const fs::path& folder, const std::vector<fs::path>& checkpoints, const std::string& run) {
  const fs::path aside = folder / ("before-" + run);
  fs::create_directories(aside);
  for (const fs::path& path : checkpoints) fs::rename(path, free_name(aside, path.filename().string()));
  return aside;
}

/// Written by this run; or by one that went on from an older checkpoint because this one is damaged.
bool may_be_replaced(const fs::path& checkpoint, const std::string& run) {
  try {
    const std::string its = read_checkpoint(checkpoint).info.run;
    return its.empty() || its == run;
  } catch (const Error&) {
    return fs::exists(checkpoint / "checkpoint.json");
  }
}

}  // namespace

std::string checkpoint_name(i64 step) { return fmt::format("{}{:08}", kStep, step); }

std::vector<fs::path> checkpoint_paths(const fs::path& folder) {
  std::vector<fs::path> paths;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (entry.path().filename().string().starts_with(kStep)) paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

void publish_checkpoint(const fs::path& unfinished, const fs::path& folder, const CheckpointInfo& info) {
  const fs::path target = folder / checkpoint_name(info.step);
  sync_to_disk(unfinished);
  if (fs::exists(target) && !may_be_replaced(target, info.run)) set_aside(folder, {target}, info.run);
  if (fs::exists(target))
    take_name(unfinished, target, hidden(target, kReplaced));
  else
    fs::rename(unfinished, target);
  sync_to_disk(folder);
  fs::remove_all(unfinished);  // the one before, after a swap
  fs::remove_all(hidden(target, kReplaced));
}

void remove_older(const fs::path& folder, i64 keep, const std::string& run) {
  i64 kept = 0;
  for (const FoundCheckpoint& found : find_checkpoints(folder, [](const std::string&) {})) {
    if (found.info.run == run && kept++ >= keep) remove_checkpoint(found.path);
  }
}

std::string set_others_aside(const fs::path& folder, const std::string& run) {
  // The newest goes last: who is interrupted here leaves a folder from which the other run can go on.
  const std::vector<fs::path> others = checkpoint_paths(folder);
  if (others.empty()) return "";
  try {
    return fmt::format("{} of other runs {} now in {}", counted(others.size(), "checkpoint"),
                       agree(others.size(), "is", "are"), set_aside(folder, others, run).string());
  } catch (const fs::filesystem_error& error) {
    fail<IoError>(folder.string(), "cannot move the checkpoints of another run: {}", error.code().message());
  }
}

void recover_checkpoints(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> replaced, left;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(kReplaced + kStep)) replaced.push_back(entry.path());
    if (name.starts_with(kRemoved + kStep)) left.push_back(entry.path());
    if (name.starts_with("." + kStep) && name.ends_with(".unfinished")) left.push_back(entry.path());
  }
  for (const fs::path& path : replaced) {
    const fs::path target = folder / path.filename().string().substr(kReplaced.size());
    if (fs::exists(target, code))
      left.push_back(path);
    else
      fs::rename(path, target, code);
  }
  for (const fs::path& path : left) fs::remove_all(path, code);
}

}  // namespace hetermoe
