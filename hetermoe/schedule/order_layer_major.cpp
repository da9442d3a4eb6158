#include <algorithm>

#include "hetermoe/schedule/waves.h"

// Layer by layer over a window of microbatches. Window 1 is one microbatch after another (expert parallelism,
// DistEP); the whole step is zebra parallelism: HeterMoE (arXiv 2504.03871), Theorem 1.
namespace hetermoe {
namespace {

/// One group: its microbatches cut into windows.
struct GroupRun {
  WaveRunner runner;
  i32 num_microbatches, window;

  i32 num_windows() const { return (num_microbatches + window - 1) / window; }
};

}  // namespace

void order_layer_major(ScheduleBuilder& builder) {
  const Placement& placement = builder.placement();
  std::vector<GroupRun> groups;
  i32 num_windows = 0;
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    if (!builder.lists_group(g)) continue;
    const i32 num_microbatches = placement.num_microbatches(g);
    const i32 window = placement.plan().window > 0 ? placement.plan().window : num_microbatches;
    groups.push_back({WaveRunner(builder, g), num_microbatches, window});
    num_windows = std::max(num_windows, groups.back().num_windows());
  }
  const std::vector<Wave> waves = make_waves(placement);
  // Groups advance together, wave by wave, so that what spans them (balance, reduce) has its place in the
  // order of all; their last windows coincide.
  for (i32 left = num_windows; left > 0; --left) {
    for (const Wave& wave : waves) {
      for (GroupRun& group : groups) {
        const i32 first = (group.num_windows() - left) * group.window;
        if (first < 0) continue;
        group.runner.run(wave, first, std::min(first + group.window, group.num_microbatches));
        if (left == 1) group.runner.report_done(wave);
      }
    }
    for (GroupRun& group : groups) group.runner.finish_returns();
  }
}

}  // namespace hetermoe
