#include "hetermoe/train/session/start.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/on_ranks.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

using testing::on_ranks;

Facts facts(const TinyRun& rig, const ProfileSet& profiles = {}) {
  const Placement placement(rig.plan, rig.model, step_options(rig.job, rig.model));
  const std::unique_ptr<CostModel> cost = make_cost(rig.model, rig.cluster, rig.plan, {});
  return facts_of({.job = rig.job,
                   .model = rig.model,
                   .cluster = rig.cluster,
                   .plan = rig.plan,
                   .emulated = placement,
                   .truth = *cost,
                   .nominal = *cost,
                   .profiles = profiles,
                   .text_checksum = 5});
}

/// What rank 1 of three is told when it starts with these.
std::string refusal_of(const Facts& of_rank_0, const Facts& of_rank_1) {
  const std::vector<std::string> errors = on_ranks(3, [&](const Processes& processes) {
    check_same_run(processes, processes.rank() == 1 ? of_rank_1 : of_rank_0);
  });
  EXPECT_EQ(errors, std::vector<std::string>(3, errors[0]));
  return errors[0];
}

TEST(SameRun, RanksThatAreAlikeStart) {
  const WorkFolder folder;
  const TinyRun rig(folder.path());
  EXPECT_EQ(refusal_of(facts(rig), facts(rig)), "no error");
}

TEST(SameRun, AnotherClusterFileUnderTheSameNameIsRefusedByName) {
  const WorkFolder folder;
  const TinyRun rig(folder.path());
  TinyRun other(folder.path());
  other.cluster.nodes[0].network *= 2;
  const std::string error = refusal_of(facts(rig), facts(other));
  EXPECT_TRUE(error.starts_with("[rank 1] is not started like rank 0: it differs in cluster (got ")) << error;
  EXPECT_EQ(error.find("), "), std::string::npos) << error;
}

TEST(SameRun, AnotherProfileIsRefusedByName) {
  const WorkFolder folder;
  const TinyRun rig(folder.path());
  ProfileSet here, there;
  here[0].profile.entries.resize(1);
  there[0].profile.entries.resize(1);
  here[0].where = "gpu.json";
  there[0].where = "/elsewhere/gpu.json";
  EXPECT_EQ(refusal_of(facts(rig, here), facts(rig, there)), "no error");
  there[0].profile.entries[0].seconds += 1e-6;
  EXPECT_NE(refusal_of(facts(rig, here), facts(rig, there)).find("it differs in profiles (got "),
            std::string::npos);
}

TEST(SameRun, AllThatDiffersIsNamed) {
  const WorkFolder folder;
  const TinyRun rig(folder.path()), other(folder.path(), {{"strategy", "ep"}});
  const std::string error = refusal_of(facts(rig), facts(other));
  EXPECT_NE(error.find("it differs in plan (got "), std::string::npos) << error;
  EXPECT_NE(error.find("), job (got "), std::string::npos) << error;
}

TEST(LaunchOrder, AllRanksTakeThatOfRank0) {
  const WorkFolder folder;
  const TinyRun rig(folder.path());
  const Schedule schedule = build_schedule(rig.plan, rig.model);
  std::vector<OpId> first(schedule.ops.size());
  for (std::size_t i = 0; i < first.size(); ++i) first[i] = static_cast<OpId>(i);
  std::vector<OpId> second = first;
  std::swap(second[2], second[3]);
  const std::vector<std::string> errors = on_ranks(2, [&](const Processes& processes) {
    EXPECT_EQ(order_of_rank_0(processes, schedule, processes.rank() == 0 ? second : first), second);
  });
  EXPECT_EQ(errors, std::vector<std::string>(2, "no error"));
}

TEST(LaunchOrder, OfAnotherScheduleIsRefused) {
  const WorkFolder folder;
  const TinyRun rig(folder.path()), other(folder.path(), {{"strategy", "ep"}});
  const std::vector<Schedule> schedules = {build_schedule(rig.plan, rig.model),
                                           build_schedule(other.plan, other.model)};
  const std::vector<std::string> errors = on_ranks(2, [&](const Processes& processes) {
    const Schedule& schedule = schedules[static_cast<std::size_t>(processes.rank())];
    order_of_rank_0(processes, schedule, std::vector<OpId>(schedule.ops.size()));
  });
  EXPECT_EQ(errors[0], "no error");
  EXPECT_TRUE(errors[1].starts_with("[rank 1] has another schedule than rank 0")) << errors[1];
}

/// The session asks once for each of its two schedules, before the first step.
TEST(LaunchOrder, IsAgreedOnWhenASessionIsMade) {
  const WorkFolder folder;
  const TinyRun rig(folder.path());
  const std::unique_ptr<CostModel> cost = make_cost(rig.model, rig.cluster, rig.plan, {});
  std::vector<u64> asked;
  Session::Options options;
  options.launch_by = cost.get();
  options.agree_on_order = [&](const Schedule& schedule, const std::vector<OpId>& mine) {
    asked.push_back(hash(schedule));
    return mine;
  };
  const Session session(rig.model, rig.cluster, rig.plan, options);
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(asked[0], hash(session.schedule()));
}

}  // namespace
}  // namespace hetermoe
