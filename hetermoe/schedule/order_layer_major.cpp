#include <algorithm>

#include "hetermoe/schedule/order_policy.h"
#include "hetermoe/schedule/waves.h"

// Layer by layer over a window of microbatches. Window 1 is one microbatch after another (expert parallelism,
// DistEP); the whole step is zebra parallelism: HeterMoE (arXiv 2504.03871), Theorem 1.
namespace hetermoe {
namespace {

/// One group: its microbatches cut into windows.
struct GroupRun {
  WaveRunner runner;
  std::vector<Wave> waves;
  i32 num_microbatches, window;
  std::size_t next = 0;  // of the waves, in a window

  i32 num_windows() const { return (num_microbatches + window - 1) / window; }
  /// The next wave if it is of this level, else null.
  const Wave* take(i32 level) {
    return next < waves.size() && waves[next].level == level ? &waves[next++] : nullptr;
  }
};

/// One wave of this level of each group that has one left. False when none has.
bool run_level(std::vector<GroupRun>& groups, i32 level, i32 windows_left) {
  bool more = false;
  for (GroupRun& group : groups) {
    const i32 first = (group.num_windows() - windows_left) * group.window;
    const Wave* wave = first < 0 ? nullptr : group.take(level);
    if (wave == nullptr) continue;
    more = true;
    group.runner.run(*wave, first, std::min(first + group.window, group.num_microbatches));
    if (windows_left == 1) group.runner.report_done(*wave);
  }
  return more;
}

void append_layer_major(ScheduleBuilder& builder) {
  const Placement& placement = builder.placement();
  std::vector<GroupRun> groups;
  i32 num_windows = 0;
  for (i32 g = 0; g < placement.num_groups(); ++g) {
    if (!builder.lists_group(g)) continue;
    const i32 num_microbatches = placement.num_microbatches(g);
    const i32 window = placement.plan().window > 0 ? placement.plan().window : num_microbatches;
    groups.push_back({WaveRunner(builder, g), make_waves(placement, g), num_microbatches, window});
    num_windows = std::max(num_windows, groups.back().num_windows());
  }
  const i32 num_levels = 2 * placement.num_layers() + 1;
  // Groups advance together, wave by wave, so that what spans them (balance, reduce) has its place in the
  // order of all; their last windows coincide.
  for (i32 left = num_windows; left > 0; --left) {
    for (i32 level = 0; level < num_levels; ++level) {
      while (run_level(groups, level, left)) {
      }
    }
    for (GroupRun& group : groups) {
      group.runner.finish_returns();
      group.next = 0;
    }
  }
}

}  // namespace

OrderPolicyTraits order_rows::layer_major_order() {
  return {.policy = OrderPolicy::kLayerMajor,
          .append = append_layer_major,
          .appends_end_of_step = false,
          .treats_equals_alike = true,
          .has_window = true,
          .zero_window_is_all = true,
          .windows_in_sequence = true,
          .has_stages = false,
          .has_rounds = false,
          .in_flight = in_flight_of_window,
          .plan_name = ""};
}

}  // namespace hetermoe
