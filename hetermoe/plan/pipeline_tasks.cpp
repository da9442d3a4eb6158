#include "hetermoe/plan/pipeline_tasks.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// All tasks of one direction: groups of windows one after another, each through all chunks.
std::vector<PipelineTask> one_direction(const PipelineStages& stages, i32 rank, i32 windows, bool forward) {
  std::vector<PipelineTask> tasks;
  const i32 together = stages.chunks() > 1 ? stages.ranks : windows;
  for (i32 first = 0; first < windows; first += together) {
    for (i32 c = 0; c < stages.chunks(); ++c) {
      const i32 chunk = forward ? c : stages.chunks() - 1 - c;
      for (i32 w = first; w < std::min(first + together, windows); ++w)
        tasks.push_back({forward, chunk * stages.ranks + rank, w});
    }
  }
  return tasks;
}

}  // namespace

PipelineStages pipeline_stages(const Group& group) {
  PipelineStages stages;
  std::vector<const ShareRow*> rows;  // [stage]
  for (std::size_t l = 0; l < group.layers.size(); ++l) {
    const ShareRow& row = share_row(group.layers[l].attention, 0);
    if (!rows.empty() && row == *rows.back()) continue;
    stages.first_layer.push_back(static_cast<i32>(l));
    rows.push_back(&row);
  }
  std::size_t ranks = 1;
  const auto again = [&](std::size_t s) { return *rows[s] == *rows[s % ranks]; };
  while (ranks < rows.size() && !again(ranks)) ++ranks;
  bool cycles = ranks > 1 && rows.size() % ranks == 0;
  for (std::size_t s = ranks; s < rows.size() && cycles; ++s) cycles = again(s);
  stages.ranks = cycles ? static_cast<i32>(ranks) : std::max(1, stages.size());
  return stages;
}

std::vector<PipelineTask> tasks_of_rank(const PipelineStages& stages, i32 rank, i32 windows, bool backward) {
  const std::vector<PipelineTask> forward = one_direction(stages, rank, windows, true);
  if (!backward) return forward;
  const std::vector<PipelineTask> back = one_direction(stages, rank, windows, false);
  const i32 after = stages.ranks - rank;  // this rank and those that follow
  const i32 first = stages.chunks() == 1 ? after : 2 * (after - 1) + (stages.chunks() - 1) * stages.ranks + 1;
  const std::size_t ahead = std::min(idx(first), forward.size());
  std::vector<PipelineTask> tasks(forward.begin(), forward.begin() + static_cast<std::ptrdiff_t>(ahead));
  for (std::size_t i = 0; i < back.size(); ++i) {
    tasks.push_back(back[i]);
    if (ahead + i < forward.size()) tasks.push_back(forward[ahead + i]);
  }
  return tasks;
}

i64 windows_in_flight(const PipelineStages& stages, i32 stage, i32 windows) {
  if (stages.chunks() == 1) return std::min(stages.ranks - stage, windows);
  i64 now = 0, most = 0;
  for (const PipelineTask& task : tasks_of_rank(stages, stage % stages.ranks, windows, true)) {
    if (task.stage == stage) most = std::max(most, now += task.forward ? 1 : -1);
  }
  return most;
}

}  // namespace hetermoe
