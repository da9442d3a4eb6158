#include "hetermoe/train/replan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>

namespace hetermoe {
namespace {

/// The demo cluster: devices 0 and 1 are A40, 2 and 3 are V100.
Job demo_job(JobChanges overrides) {
  overrides.insert(overrides.begin(), {{"model", "tiny"}, {"cluster", "demo"}});
  return job_from_overrides(overrides);
}

std::map<std::string, std::string> changes_of(const JobChanges& overrides,
                                              const std::vector<DeviceId>& left) {
  std::map<std::string, std::string> out;
  for (const auto& [key, value] : replan(demo_job(overrides), left)) out[key] = value;
  return out;
}

TEST(Replan, DevicesKeepTheirRolesWhereBothAreLeft) {
  const auto changes = changes_of({{"strategy", "zebra"}}, {0, 2, 3});
  EXPECT_EQ(changes.at("strategy"), "zebra");
  EXPECT_EQ(changes.at("plan.attention"), "[0]");
  EXPECT_EQ(changes.at("plan.experts"), "[2,3]");
}

TEST(Replan, RolesAreGivenAnewWhenOneIsGone) {
  const auto changes = changes_of({{"strategy", "zebra"}}, {2, 3});
  EXPECT_EQ(changes.at("plan.attention"), "[2]");
  EXPECT_EQ(changes.at("plan.experts"), "[3]");
}

TEST(Replan, ExpertParallelismTakesWhoIsLeft) {
  const auto changes = changes_of({{"strategy", "ep"}}, {0, 1, 3});
  EXPECT_EQ(changes.at("strategy"), "ep");
  EXPECT_EQ(changes.at("plan.attention"), "[0,1,3]");
}

TEST(Replan, OneDeviceDoesEverything) {
  const auto changes = changes_of({{"strategy", "zebra"}}, {3});
  EXPECT_EQ(changes.at("strategy"), "single");
  EXPECT_EQ(changes.at("plan.attention"), "[3]");
}

TEST(Replan, TheChangesMakeAJobOverTheSurvivorsAlone) {
  for (const char* strategy : {"zebra", "dist_ep", "ep", "ep_overlap", "single"}) {
    for (const std::vector<DeviceId>& left : std::vector<std::vector<DeviceId>>{{0, 1, 2}, {1, 3}, {2}}) {
      const JobChanges before = {{"strategy", strategy},
                                 {"plan.attention_weights", strategy == std::string("zebra") ? "2,1" : ""}};
      JobChanges all = before;
      for (const auto& change : replan(demo_job(before), left)) {
        std::erase_if(all, [&](const auto& old) { return old.first == change.first; });
        all.push_back(change);
      }
      const Job job = demo_job(all);
      const Plan plan = make_job_plan(job, load_model("tiny"), load_cluster("demo"));
      for (const DeviceId d : plan.groups[0].devices)
        EXPECT_TRUE(std::find(left.begin(), left.end(), d) != left.end()) << strategy;
    }
  }
}

TEST(Replan, NobodyLeftIsAnError) { EXPECT_THROW(replan(demo_job({}), {}), ConfigError); }

}  // namespace
}  // namespace hetermoe
