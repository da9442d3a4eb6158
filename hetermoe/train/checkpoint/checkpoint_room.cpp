#include "hetermoe/train/checkpoint/checkpoint_room.h"

#include <algorithm>

#include "hetermoe/base/file_system.h"
#include "hetermoe/base/words.h"
#include "hetermoe/train/checkpoint/checkpoint_folder.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/weights/disk_room.h"

namespace hetermoe {
namespace {

/// Of rank 0.
std::string told_by_rank_0(const Processes& processes, const std::function<std::string()>& look) {
  return processes.gather(processes.rank() == 0 ? look() : "").front();
}

}  // namespace

Bytes bytes_of_all(const CheckpointShard& mine, const Processes& processes) {
  Bytes sum = 0;
  for (const std::string& text : processes.gather(Json(bytes_of(mine)).dump()))
    sum += Json::parse(text).get<Bytes>();
  return sum;
}

std::string lack_of_room_for(Bytes checkpoint, const std::filesystem::path& folder,
                             const Processes& processes) {
  return told_by_rank_0(processes, [&] { return lack_of_room(folder, checkpoint); });
}

Bytes most_checkpoint_bytes(const CheckpointOptions& options, i64 steps, i64 there, Bytes checkpoint) {
  if (options.every == 0 || steps <= 0) return 0;
  const i64 written = (steps + options.every - 1) / options.every;
  return checkpoint * static_cast<Bytes>(std::min(options.keep + 1, there + written));
}

void check_checkpoint_room(const Job& job, Bytes most, const char* what, const Processes& processes) {
  const std::string lacks = told_by_rank_0(processes, [&] {
    const std::filesystem::path folder = checkpoint_folder(job.output);
    Bytes there = 0;
    for (const std::filesystem::path& path : checkpoint_paths(folder)) there += folder_bytes(path);
    return lack_of_room(folder, most - (job.checkpoint.resume ? there : 0));
  });
  if (lacks.empty()) return;
  fail<ConfigError>("checkpoint.every",
                    "{} {} for {} (checkpoint.keep {} and the one that is being written): free that "
                    "much, give an --output on another disk, or --checkpoint.every 0",
                    checkpoint_folder(job.output).string(), lacks, what, job.checkpoint.keep);
}

}  // namespace hetermoe
