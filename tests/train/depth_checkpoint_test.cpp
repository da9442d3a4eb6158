#include <gtest/gtest.h>

#include "tests/train/differences.h"
#include "tests/train/tiny_run.h"

// Checkpoints of plans with depth groups and teams.
namespace hetermoe {
namespace {

/// Depth groups, and teams that are not in the plan after.
TEST(DepthCheckpoint, IsReadByAnotherDepthAndByOtherPlans) {
  const std::vector<Settings> plans = {
      {{"strategy", "af-pipe"}, {"plan.depth_groups", "2"}},
      {{"strategy", "af-pipe"}, {"plan.depth_groups", "1"}, {"plan.combine_to", "next"}},
      {{"strategy", "sp-ep"}, {"plan.team", "2"}},
      {{"strategy", "zebra"}}};
  const WorkFolder whole_folder;
  const TinyRun::End whole = TinyRun(whole_folder.path()).run(Checkpoints::kOff);
  for (std::size_t first = 0; first < plans.size(); ++first) {
    const WorkFolder folder;
    TinyRun(folder.path(), plans[first]).run();
    for (std::size_t then = 0; then < plans.size(); ++then) {
      if (then == first) continue;
      fs::remove_all(TinyRun(folder.path()).checkpoints() / "step-00000006");
      Settings keep = plans[then];
      keep.emplace_back("checkpoint.keep", "9");
      const TinyRun::End resumed = TinyRun(folder.path(), keep).run();
      EXPECT_EQ(resumed.outcome.first_step, 4) << first << " " << then;
      EXPECT_LT(worst_difference(resumed.values, whole.values), 1e-5) << first << " " << then;
    }
  }
}

}  // namespace
}  // namespace hetermoe
