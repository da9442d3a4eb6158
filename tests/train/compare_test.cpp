#include "hetermoe/train/run/compare.h"

#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <map>
#include <string>

#include "hetermoe/planner/strategies/depth_groups.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

/// On the demo cluster: devices 0, 1 newer, 2, 3 older.
Job small_job(const WorkFolder& folder, Settings overrides) {
  const Settings small = {{"model", "tiny"},
                          {"cluster", "demo"},
                          {"output", (folder.path() / "out").string()},
                          {"data.paths", folder.file("text", std::string(4000, 'a'))},
                          {"train.seq_len", "8"},
                          {"train.sequences", "4"},
                          {"train.microbatches", "2"}};
  overrides.insert(overrides.begin(), small.begin(), small.end());
  return job_from_overrides(overrides);
}

/// The plans of a comparison.
std::vector<Plan> plans_of(const std::vector<std::string>& strategies, const Settings& overrides) {
  const WorkFolder folder;
  std::vector<Plan> plans;
  for (StrategyRun& run : compare_job(small_job(folder, overrides), strategies, {.execute = false}))
    plans.push_back(std::move(run.plan));
  return plans;
}

std::string compare_refusal(const std::vector<std::string>& strategies, const Settings& overrides) {
  return error_of<ConfigError>([&] { plans_of(strategies, overrides); });
}

/// A number of moved experts for each layer of the tiny model.
std::string moved(i64 count) {
  const std::vector<i64> counts(static_cast<std::size_t>(load_model("tiny").num_layers), count);
  return fmt::format("{}", fmt::join(counts, ","));
}

std::string roles(const Plan& plan) { return fmt::format("{}", fmt::join(roles_of(plan), " ")); }

TEST(CompareJob, RolesOfZebraGiveTheOthersTheSameDevices) {
  const std::vector<Plan> plans =
      plans_of({"zebra", "ep", "ep-overlap", "dist-ep", "single"},
               {{"plan.attention", "1"}, {"plan.experts", "2,3"}, {"plan.experts_moved", moved(0)}});
  ASSERT_EQ(plans.size(), 5u);
  const std::string apart = "idle attention expert expert", alike = "idle both both both";
  EXPECT_EQ(roles(plans[0]), apart);
  EXPECT_EQ(roles(plans[1]), alike);
  EXPECT_EQ(roles(plans[2]), alike);
  EXPECT_EQ(roles(plans[3]), apart);
  EXPECT_EQ(roles(plans[4]), "idle both idle idle");
}

TEST(CompareJob, ARoleThatIsNotGivenCountsToo) {
  // zebra has its experts on the older devices then
  EXPECT_EQ(roles(plans_of({"ep", "zebra"}, {{"plan.attention", "0"}})[0]), "both idle both both");
  EXPECT_EQ(roles(plans_of({"ep", "zebra"}, {{"plan.experts", "3"}})[0]), "both both idle both");
  EXPECT_EQ(roles(plans_of({"ep", "zebra"}, {})[0]), "both both both both");
  EXPECT_EQ(roles(plans_of({"ep", "single"}, {{"plan.attention", "2,3"}})[1]), "idle idle both idle");
}

TEST(CompareJob, MovedExpertsAndWeightsOfRolesAreLeftToThoseWhoHaveThem) {
  const std::vector<Plan> plans = plans_of(
      {"zebra", "ep", "single"},
      {{"plan.attention_weights", "3,1"}, {"plan.expert_weights", "1,1"}, {"plan.experts_moved", moved(1)}});
  EXPECT_EQ(roles(plans[0]), "both both expert expert");
  const LayerPlacement &zebra = plans[0].groups[0].layers[0], &ep = plans[1].groups[0].layers[0];
  EXPECT_EQ(zebra.attention, (Shares{{{0, 2}, {1, 0}}}));
  EXPECT_EQ(ep.attention, (Shares{{{0, 1}, {1, 1}, {2, 0}, {3, 0}}}));
  std::map<DeviceId, i64> owned;
  for (const auto& owners : ep.experts) ++owned[owners[0].device];
  EXPECT_EQ(owned, (std::map<DeviceId, i64>{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
}

TEST(CompareJob, DepthGroupsAreLeftToThoseWhoHaveThem) {
  const std::vector<Plan> plans = plans_of({"zebra", "af-pipe"}, {{"plan.depth_groups", "2"}});
  EXPECT_EQ(depth_groups_of(plans[0].groups[0]).attention, 1);
  EXPECT_EQ(depth_groups_of(plans[1].groups[0]).attention, 2);
}

TEST(CompareJob, WhatNoneOfTheStrategiesHasAUseForIsRefused) {
  EXPECT_TRUE(compare_refusal({"ep", "single"}, {{"plan.attention", "0,1"}, {"plan.experts", "2,3"}})
                  .starts_with("[plan.experts] got devices 2, 3, but strategy "));
  EXPECT_TRUE(
      compare_refusal({"single"}, {{"plan.attention", "0,1"}}).starts_with("[plan.attention] got devices"));
  EXPECT_EQ(compare_refusal({"zebra"}, {{"plan.depth_groups", "2"}}),
            "[plan.depth_groups] strategy zebra does not look at it, expected af-pipe, or no such key");
  EXPECT_EQ(compare_refusal({"zebra", "af-pipe"}, {{"plan.stages", "2"}}),
            "[plan.stages] strategy zebra does not look at it, expected pp-ep or pp-zebra, or no such key");
  EXPECT_TRUE(compare_refusal({"ep", "zebra"}, {{"plan.experts", "2,77"}})
                  .starts_with("[plan.experts] device 77 does not exist"));
}

TEST(CompareJob, AStrategyThatCannotRunIsLeftOutByName) {
  const WorkFolder folder;
  std::vector<std::string> left_out;
  const std::vector<StrategyRun> runs = compare_job(
      small_job(folder, {{"train.aux_group", "0"}}), {"zebra", "single"},
      {.execute = false, .on_left_out = [&](const std::string& text) { left_out.push_back(text); }});
  ASSERT_EQ(runs.size(), 1u);
  EXPECT_EQ(runs[0].strategy, "zebra");
  ASSERT_EQ(left_out.size(), 1u);
  EXPECT_TRUE(left_out[0].starts_with("single does not run: [train.aux_group] got 0")) << left_out[0];
}

TEST(CompareJob, WeightsOfDevicesThatAllHaveStay) {
  const std::vector<Plan> plans =
      plans_of({"ep", "ep-overlap"}, {{"plan.attention_weights", "2,2,0.001,0.001"}});
  for (const Plan& plan : plans)
    EXPECT_EQ(plan.groups[0].layers[0].attention, (Shares{{{0, 1}, {1, 1}, {2, 0}, {3, 0}}}));
}

}  // namespace
}  // namespace hetermoe
