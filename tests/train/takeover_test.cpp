#include <gtest/gtest.h>

#include "tests/support/counting_data.h"
#include "tests/support/error_of.h"
#include "tests/train/tiny_run.h"

// train.changes: a run goes over from plan to plan, and so do its restarts.
namespace hetermoe {
namespace {

/// The plan of a strategy for the job of TinyRun, in a file.
std::string plan_file(const WorkFolder& folder, const std::string& strategy) {
  const TinyRun run(folder / "unused", {{"strategy", strategy}});
  return folder.file(strategy + ".json", to_json(run.plan).dump());
}

/// zebra, from step 3 on ep, from step 5 on zebra again.
Settings there_and_back(const WorkFolder& folder) {
  const Json changes = {{{"step", 3}, {"plan", plan_file(folder, "ep")}},
                        {{"step", 5}, {"plan", plan_file(folder, "zebra")}}};
  return {{"train.changes", changes.dump()}};
}

TinyRun run_with(const std::string& output, Settings overrides, const Settings& more = {}) {
  overrides.insert(overrides.end(), more.begin(), more.end());
  return TinyRun(output, overrides);
}

std::vector<double> losses(const TrainOutcome& outcome) {
  std::vector<double> all;
  for (const StepRecord& record : outcome.records) all.push_back(record.loss);
  return all;
}

TEST(Takeover, PlansTakeOverAtTheirStepsAndAreTold) {
  const WorkFolder folder;
  TinyRun run = run_with(folder / "out", there_and_back(folder));
  std::vector<std::string> strategies;
  const TinyRun::End end = run.run(Checkpoints::kOff, [&](Session& session, const StepRecord&) {
    strategies.push_back(session.plan().strategy);
  });
  EXPECT_EQ(strategies, (std::vector<std::string>{"zebra", "zebra", "ep", "ep", "zebra", "zebra"}));
  ASSERT_EQ(end.outcome.changes.size(), 2U);
  EXPECT_EQ(end.outcome.changes[0].step, 3);
  EXPECT_EQ(end.outcome.changes[0].plan, "ep.json");
  const Plan ep = plan_from_json(read_json(folder / "ep.json"), "ep");
  const UnitMoves moves = moves_between(run.plan, ep, run.model, run.cluster);
  EXPECT_EQ(end.outcome.changes[0].moves, static_cast<i64>(moves.moves.size()));
  EXPECT_EQ(end.outcome.changes[0].bytes, moves.bytes());
  EXPECT_GT(end.outcome.changes[0].simulated_s, 0);
  EXPECT_EQ(end.outcome.changes[0].simulated.ops.at(0).kind, "migrate");
}

TEST(Takeover, ChangesTheRoundingOfLossesAtMost) {
  const WorkFolder folder;
  TinyRun steady(folder / "steady"), changing = run_with(folder / "changing", there_and_back(folder));
  const std::vector<double> expected = losses(steady.run(Checkpoints::kOff).outcome),
                            got = losses(changing.run(Checkpoints::kOff).outcome);
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], expected[i], 1e-5) << i;
}

TEST(Takeover, AResumedRunBeginsWithThePlanOfItsCheckpointAndHasTheBitsOfTheUnbrokenOne) {
  const WorkFolder folder;
  const Settings changes = there_and_back(folder);
  TinyRun whole = run_with(folder / "whole", changes);
  const TinyRun::End expected = whole.run();
  for (const i64 last : {2, 4}) {
    const std::string output = folder / fmt::format("cut{}", last);
    TinyRun cut = run_with(output, changes);
    // As if killed: the checkpoint after step `last` is the newest.
    cut.run(Checkpoints::kOn, [&](Session&, const StepRecord& record) {
      if (record.step == last - 1) stop_requested = true;  // seen by the next step
    });
    stop_requested = false;
    const FoundCheckpoint found = find_checkpoints(cut.checkpoints(), kIgnore).at(0);
    EXPECT_EQ(found.info.step, last);
    EXPECT_EQ(found.info.plan.at("strategy"), last == 2 ? "zebra" : "ep");
    TinyRun again = run_with(output, changes);
    std::vector<std::string> strategies;
    const TinyRun::End got = again.run(Checkpoints::kOn, [&](Session& session, const StepRecord&) {
      strategies.push_back(session.plan().strategy);
    });
    EXPECT_EQ(got.outcome.first_step, last);
    EXPECT_EQ(strategies.front(), last == 2 ? "ep" : "zebra");
    expect_equal(got.values, expected.values);
    EXPECT_EQ(got.outcome.records.back().loss, expected.outcome.records.back().loss);
  }
}

TEST(Takeover, AResumedRunBetweenChangesStaysWithThePlanInForce) {
  const WorkFolder folder;
  const Settings changes = {
      {"train.changes", Json({{{"step", 2}, {"plan", plan_file(folder, "ep")}}}).dump()}};
  TinyRun whole = run_with(folder / "whole", changes);
  const TinyRun::End expected = whole.run();
  TinyRun cut = run_with(folder / "cut", changes);
  cut.run(Checkpoints::kOn, [&](Session&, const StepRecord& record) {
    if (record.step == 3) stop_requested = true;
  });
  stop_requested = false;
  TinyRun again = run_with(folder / "cut", changes);
  std::vector<std::string> strategies;
  const TinyRun::End got = again.run(Checkpoints::kOn, [&](Session& session, const StepRecord&) {
    strategies.push_back(session.plan().strategy);
  });
  EXPECT_EQ(strategies, (std::vector<std::string>{"ep", "ep"}));
  EXPECT_TRUE(got.outcome.changes.empty());
  expect_equal(got.values, expected.values);
}

TEST(Takeover, AJobWithAnotherPlanGoesOnFromTheCheckpointWithItsOwn) {
  const WorkFolder folder;
  const Settings changes = {
      {"train.changes", Json({{{"step", 2}, {"plan", plan_file(folder, "ep")}}}).dump()}};
  TinyRun cut = run_with(folder / "out", changes, {{"train.steps", "4"}});
  cut.run();
  TinyRun other(folder / "out", {{"strategy", "dist-ep"}});
  std::vector<std::string> strategies;
  other.run(Checkpoints::kOn,
            [&](Session& session, const StepRecord&) { strategies.push_back(session.plan().strategy); });
  EXPECT_EQ(strategies, (std::vector<std::string>{"dist-ep", "dist-ep"}));
}

TEST(Takeover, AStepAfterAChangeIsRepeatedBitForBit) {
  const WorkFolder folder;
  TinyRun run = run_with(folder / "out", there_and_back(folder));
  const TinyRun::End end = run.run();
  const Dataset text = counting_data();
  const Processes processes;
  std::vector<FoundCheckpoint> found = find_checkpoints(run.checkpoints(), kIgnore);
  for (const i64 step : {5, 6}) {
    Trainer trainer(run.job, run.model, run.cluster, run.plan, text, processes);
    std::optional<FoundCheckpoint> from;
    for (const FoundCheckpoint& one : found) {
      if (one.info.step < step && (!from || one.info.step > from->info.step)) from = one;
    }
    const StepRecord again = trainer.replay_step(from, step);
    EXPECT_EQ(again.loss, end.outcome.records[static_cast<std::size_t>(step - 1)].loss) << step;
    EXPECT_EQ(again.grad_norm, end.outcome.records[static_cast<std::size_t>(step - 1)].grad_norm) << step;
  }
}

TEST(Takeover, AChangeThatCannotBeIsRefusedBeforeTheFirstStep) {
  const WorkFolder folder;
  TinyRun run = run_with(folder / "out", there_and_back(folder), {{"train.steps", "4"}});
  i64 steps = 0;
  EXPECT_EQ(
      error_of<ConfigError>(
          [&] { run.run(Checkpoints::kOff, [&](Session&, const StepRecord&) { ++steps; }); }),
      "[train.changes[1].step] got 5, expected 2 to 4, the last step (train.steps). The plan of the first "
      "step is plan.file");
  EXPECT_EQ(steps, 0);
}

}  // namespace
}  // namespace hetermoe
