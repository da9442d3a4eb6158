#include "hetermoe/sim/memory.h"

#include <algorithm>

#include "hetermoe/base/index.h"

namespace hetermoe {
namespace {

/// A change of what a device holds.
struct Change {
  Seconds time;
  Bytes bytes;  // negative = freed
  Bytes MemoryUse::*what;
  /// Of changes at one moment, what ends is gone before what begins.
  bool operator<(const Change& other) const {
    return time != other.time ? time < other.time : (bytes < 0) > (other.bytes < 0);
  }
};

Bytes MemoryUse::*part_of(CountsAs counts_as) {
  switch (counts_as) {
    case CountsAs::kInFlight:
      return &MemoryUse::in_flight;
    case CountsAs::kSaved:
      return &MemoryUse::saved;
    case CountsAs::kWeights:
      return &MemoryUse::weights;
    case CountsAs::kGradients:
      return &MemoryUse::gradients;
  }
  return nullptr;
}

void add_life(std::vector<Change>& changes, Seconds start, Seconds end, Bytes bytes, Bytes MemoryUse::*what) {
  if (bytes == 0 || end <= start) return;
  changes.push_back({start, bytes, what});
  changes.push_back({end, -bytes, what});
}

MemoryPeak worst_moment(std::vector<Change>& changes, const MemoryUse& state) {
  std::sort(changes.begin(), changes.end());
  MemoryUse now = state;
  MemoryPeak peak{state, 0};
  for (const Change& change : changes) {
    now.*change.what += change.bytes;
    if (now.total() > peak.use.total()) peak = {now, change.time};
  }
  // A buffer that takes the memory of another is one buffer, not less than no workspace.
  peak.use.saved += std::min(0.0, peak.use.workspace);
  peak.use.workspace = std::max(0.0, peak.use.workspace);
  return peak;
}

}  // namespace

std::vector<MemoryPeak> peak_memory(const Schedule& schedule, const OpTimes& times, BufferSizes& sizes,
                                    const Lifetimes& lifetimes) {
  std::vector<Seconds> end(lifetimes.epochs.size(), 0);
  std::vector<std::vector<Change>> changes(idx(schedule.num_places()));
  for (OpId op = 0; op < schedule.num_ops(); ++op) {
    const std::span<const LaneId> lanes = schedule.lanes_of(op);
    for (std::size_t i = 0; i < lanes.size(); ++i) {
      for (const i32 epoch : lifetimes.uses_of(schedule, op, i))
        end[idx(epoch)] = std::max(end[idx(epoch)], times.end[idx(op)]);
      const DeviceId device = device_of(lanes[i]);
      add_life(changes[idx(device)], times.start[idx(op)], times.end[idx(op)],
               sizes.workspace(schedule.ops[idx(op)], device), &MemoryUse::workspace);
    }
  }
  for (std::size_t e = 0; e < lifetimes.epochs.size(); ++e) {
    const Epoch& epoch = lifetimes.epochs[e];
    add_life(changes[idx(epoch.device)], times.start[idx(epoch.first)], end[e],
             sizes.of(epoch.key, epoch.device), part_of(row_of(epoch.key.buffer()).counts_as));
  }
  std::vector<MemoryPeak> peaks;
  for (PlaceId place = 0; place < schedule.num_places(); ++place) {
    peaks.push_back(worst_moment(changes[idx(place)], sizes.state(place)));
  }
  return peaks;
}

std::vector<MemoryPeak> peak_memory(const Schedule& schedule, const OpTimes& times,
                                    const Placement& placement, const ModelConfig& model,
                                    const Cluster& cluster, const RoutingLoad& routing, double margin) {
  BufferSizes sizes(placement, model, cluster, routing, margin);
  return peak_memory(schedule, times, sizes, make_lifetimes(schedule, placement));
}

}  // namespace hetermoe
