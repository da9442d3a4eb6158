#include "hetermoe/train/session/replan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>

#include "hetermoe/planner/predict.h"
#include "hetermoe/train/session/session.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

/// The demo cluster: devices 0 and 1 are A40, 2 and 3 are V100.
Job demo_job(JobChanges overrides) {
  overrides.insert(overrides.begin(), {{"model", "tiny"}, {"cluster", "demo"}});
  return job_from_overrides(overrides);
}

/// A cluster like demo whose devices can hold nothing: the planner has no plan, but the run here has memory.
std::string tiny_memory(const WorkFolder& folder) {
  Cluster cluster = load_cluster("demo");
  for (DeviceType& type : cluster.types) type.memory_gib = 1e-6;
  return folder.file("small.json", to_json(cluster).dump());
}

/// The job after a loss.
struct After {
  Replanned replanned;
  std::map<std::string, std::string> changes;
  Job job;
  Plan plan;
};

After lose(const JobChanges& before, const std::vector<DeviceId>& left) {
  After after;
  after.replanned = replan(demo_job(before), left);
  JobChanges all = before;
  for (const auto& [key, value] : after.replanned.changes) {
    after.changes[key] = value;
    all.emplace_back(key, value);  // the last one counts, as on a command line
  }
  after.job = demo_job(all);
  after.plan = make_job_plan(after.job, load_model("tiny"), load_cluster(after.job.cluster));
  return after;
}

Seconds simulated_step(const Job& job, const Plan& plan) {
  const ModelConfig model = load_model(job.model);
  const Cluster cluster = load_cluster(job.cluster);
  return Predictor(model, cluster).predict(emulated_plan(job, plan)).step;
}

// ---- by the job's own strategy, where the planner has nothing ----

// Claim (mpi.replan, Replan.*, Presence.*): with a device gone the run goes on over the others with the
// weights of a run that starts there, to the bit; the new plan is no slower in simulation than that of the
// job's strategy
TEST(Replan, WithoutAPlanOfThePlannerTheStrategyStaysAndItIsSaidWhy) {
  const WorkFolder folder;
  const After after =
      lose({{"strategy", "zebra"}, {"cluster", tiny_memory(folder)}, {"output", folder / "out"}}, {0, 2, 3});
  EXPECT_TRUE(after.replanned.how.starts_with("strategy zebra, ")) << after.replanned.how;
  EXPECT_NE(after.replanned.how.find("; the planner finds no plan: device "), std::string::npos)
      << after.replanned.how;
  EXPECT_FALSE(std::filesystem::exists(folder / "out"));
}

TEST(Replan, DevicesKeepTheirRolesWhereBothAreLeft) {
  const WorkFolder folder;
  const After after = lose({{"strategy", "zebra"}, {"cluster", tiny_memory(folder)}}, {0, 2, 3});
  EXPECT_EQ(after.job.strategy, "zebra");
  EXPECT_EQ(after.job.plan.attention, (std::vector<DeviceId>{0}));
  EXPECT_EQ(after.job.plan.experts, (std::vector<DeviceId>{2, 3}));
}

TEST(Replan, RolesAreGivenAnewWhenOneIsGone) {
  const WorkFolder folder;
  const After after = lose({{"strategy", "zebra"}, {"cluster", tiny_memory(folder)}}, {2, 3});
  EXPECT_EQ(after.job.plan.attention, (std::vector<DeviceId>{2}));
  EXPECT_EQ(after.job.plan.experts, (std::vector<DeviceId>{3}));
}

TEST(Replan, ExpertParallelismTakesWhoIsLeft) {
  const WorkFolder folder;
  const After after = lose({{"strategy", "ep"}, {"cluster", tiny_memory(folder)}}, {0, 1, 3});
  EXPECT_EQ(after.job.strategy, "ep");
  EXPECT_EQ(after.replanned.devices, (std::vector<DeviceId>{0, 1, 3}));
}

TEST(Replan, OneDeviceDoesEverything) {
  const WorkFolder folder;
  const After after = lose({{"strategy", "zebra"}, {"cluster", tiny_memory(folder)}}, {3});
  EXPECT_EQ(after.job.strategy, "single");
  EXPECT_EQ(after.replanned.devices, (std::vector<DeviceId>{3}));
}

TEST(Replan, ASingleDeviceThatIsLeftAmongOthersNeedsOneRank) {
  const WorkFolder folder;
  const After after = lose({{"strategy", "single"}, {"cluster", tiny_memory(folder)}}, {1, 2, 3});
  EXPECT_EQ(after.replanned.devices, (std::vector<DeviceId>{1}));
}

// ---- by the planner ----

TEST(Replan, ThePlannersPlanIsAtLeastAsGoodAsTheStrategys) {
  const WorkFolder folder;
  // Two newer and two older devices; an older one is gone.
  for (const char* strategy : {"zebra", "ep", "dist-ep"}) {
    for (const char* sequences : {"4", "16"}) {
      const JobChanges before = {{"strategy", strategy},
                                 {"output", folder / "out"},
                                 {"train.sequences", sequences},
                                 {"train.microbatches", "2"}};
      const After after = lose(before, {0, 1, 3});
      EXPECT_TRUE(after.replanned.how.starts_with("planner: ")) << after.replanned.how;
      Job own = demo_job(before);
      own.plan.attention =
          strategy == std::string("ep") ? std::vector<DeviceId>{0, 1, 3} : std::vector<DeviceId>{0, 1};
      if (strategy != std::string("ep")) own.plan.experts = {3};
      const Plan own_plan = make_job_plan(own, load_model("tiny"), load_cluster("demo"));
      EXPECT_LE(simulated_step(after.job, after.plan), simulated_step(own, own_plan)) << strategy;
    }
  }
}

TEST(Replan, WhatDecidesTheNumbersOfTheTrainingStays) {
  const WorkFolder folder;
  const JobChanges before = {{"output", folder / "out"},    {"train.sequences", "12"},
                             {"train.microbatches", "3"},   {"plan.recompute", "off"},
                             {"plan.row_dedup", "false"},   {"plan.attention_dtype", "fp64"},
                             {"plan.expert_dtype", "fp64"}, {"plan.wire_dtype", "fp64"}};
  const After after = lose(before, {0, 1, 3});
  ASSERT_TRUE(after.changes.contains("plan.file")) << after.replanned.how;
  EXPECT_EQ(total_sequences(after.plan), 12);
  EXPECT_EQ(after.plan.wire_forward, Wire::kFp64);
  EXPECT_EQ(after.plan.wire_backward, Wire::kFp64);
  for (const DeviceId d : after.replanned.devices)
    EXPECT_EQ(after.plan.dtype[static_cast<std::size_t>(d)], Dtype::kFp64);
  // Beside the plan nothing of the job is another.
  Job expected = demo_job(before);
  expected.plan = after.job.plan;
  expected.train.microbatches = after.job.train.microbatches;
  EXPECT_EQ(write_fields(after.job), write_fields(expected));
}

TEST(Replan, GradientsKeepTheirDtypeInThePlannersPlan) {
  const WorkFolder folder;
  const After after = lose({{"output", folder / "out"},
                            {"plan.attention_dtype", "bf16"},
                            {"plan.expert_dtype", "bf16"},
                            {"plan.wire_dtype", "bf16"},
                            {"plan.grad_dtype", "bf16"}},
                           {0, 1, 3});
  EXPECT_TRUE(after.replanned.how.starts_with("planner: ")) << after.replanned.how;
  EXPECT_EQ(after.plan.grad_dtype, Dtype::kBf16);
}

TEST(Replan, TheChangesMakeAJobOverTheSurvivorsAlone) {
  const WorkFolder folder;
  for (const char* strategy : {"zebra", "dist-ep", "ep", "ep-overlap", "single"}) {
    for (const std::vector<DeviceId>& left : std::vector<std::vector<DeviceId>>{{0, 1, 2}, {1, 3}, {2}}) {
      const After after = lose({{"strategy", strategy},
                                {"output", folder / "out"},
                                {"plan.attention_weights", strategy == std::string("zebra") ? "2,1" : ""}},
                               left);
      EXPECT_EQ(after.replanned.devices, devices_of(after.plan));
      for (const DeviceId d : after.replanned.devices)
        EXPECT_TRUE(std::find(left.begin(), left.end(), d) != left.end()) << strategy;
    }
  }
}

TEST(Replan, WhatThePlannersPlansDoNotHaveStays) {
  const WorkFolder folder;
  const auto how_of = [&](JobChanges more, const std::function<bool(const Plan&)>& keeps) {
    more.insert(more.begin(), {{"strategy", "ep"}, {"output", folder / "out"}});
    const After after = lose(more, {0, 1, 3});
    EXPECT_TRUE(keeps(after.plan)) << after.replanned.how;
    EXPECT_EQ(after.replanned.devices, (std::vector<DeviceId>{0, 1, 3}));
    return after.replanned.how.substr(after.replanned.how.find("; ") + 2);
  };
  EXPECT_EQ(
      how_of({{"cluster", "demo-hosts"}, {"plan.offload", "all"}, {"train.staleness", "1"}}, uses_hosts),
      "the planner does not take over parameters on hosts");
  EXPECT_EQ(how_of({{"balancer.name", "relibra"}}, [](const Plan& plan) { return plan.guest_slots > 0; }),
            "the planner does not take over guests");
  EXPECT_EQ(how_of({{"balancer.name", "lplb"}}, [](const Plan& plan) { return plan.tally; }),
            "the planner does not take over the division of copies in each exchange");
}

TEST(Replan, ASecondLossIsPlannedFromTheFirstPlan) {
  const WorkFolder folder;
  const JobChanges before = {{"strategy", "zebra"}, {"output", folder / "out"}};
  const After first = lose(before, {0, 1, 3});
  JobChanges then = before;
  for (const auto& change : first.replanned.changes) then.push_back(change);
  const After second = lose(then, {0, 3});
  EXPECT_NE(second.job.plan.file, first.job.plan.file);
  for (const DeviceId d : second.replanned.devices) EXPECT_TRUE(d == 0 || d == 3) << d;
}

TEST(Replan, NobodyLeftIsAnError) { EXPECT_THROW(replan(demo_job({}), {}), ConfigError); }

}  // namespace
}  // namespace hetermoe
