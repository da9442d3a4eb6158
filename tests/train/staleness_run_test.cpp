#include <gtest/gtest.h>

#include <algorithm>

#include "tests/train/tiny_run.h"

// Runs whose optimizer lags a step: what they write, and from where they go on.
namespace hetermoe {
namespace {

std::vector<std::pair<std::string, std::string>> lagging(const char* strategy, const char* dtype = "fp32") {
  return {{"strategy", strategy},          {"cluster", "demo-hosts"},    {"plan.offload", "all"},
          {"plan.attention_dtype", dtype}, {"plan.expert_dtype", dtype}, {"train.staleness", "1"}};
}

bool has_note(const TrainOutcome& outcome, const std::string& part) {
  return std::any_of(outcome.notes.begin(), outcome.notes.end(),
                     [&](const std::string& note) { return note.find(part) != std::string::npos; });
}

TEST(StalenessRun, AResumedRunRepeatsTheSameBits) {
  for (const char* dtype : {"fp32", "bf16"}) {
    const WorkFolder whole_folder, folder;
    const TinyRun::End whole = TinyRun(whole_folder.path().string(), lagging("zebra", dtype)).run();
    TinyRun first(folder.path().string(), lagging("zebra", dtype));
    first.run();
    fs::remove_all(first.checkpoints() / "step-00000006");
    const TinyRun::End resumed = TinyRun(folder.path().string(), lagging("zebra", dtype)).run();
    EXPECT_EQ(resumed.outcome.first_step, 4) << dtype;
    expect_equal(resumed.values, whole.values);
  }
}

TEST(StalenessRun, RoundRobinTurnsEndWithTheSameBitsWhereStepsDoNotOverlap) {
  const WorkFolder one, other;
  auto seldom = lagging("roundpipe");
  for (const auto& [key, value] : Settings{{"cluster", "rtx4090x8"},
                                           {"train.sequences", "8"},
                                           {"train.microbatches", "8"},
                                           {"checkpoint.every", "100"}})
    seldom.emplace_back(key, value);
  auto each = seldom;
  each.emplace_back("checkpoint.every", "1");
  expect_equal(TinyRun(one.path().string(), seldom).run().values,
               TinyRun(other.path().string(), each).run().values);
}

TEST(StalenessRun, CheckpointsAndValidationsChangeNoBit) {
  const WorkFolder one, other;
  auto each = lagging("ep");
  each.emplace_back("train.validate_every", "1");
  each.emplace_back("train.validation_sequences", "4");
  auto seldom = lagging("ep");
  seldom.emplace_back("checkpoint.every", "100");
  const TinyRun::End drained = TinyRun(one.path().string(), each).run();
  const TinyRun::End overlapping = TinyRun(other.path().string(), seldom).run();
  expect_equal(drained.values, overlapping.values);
  ASSERT_EQ(drained.outcome.records.size(), overlapping.outcome.records.size());
  for (std::size_t step = 0; step < drained.outcome.records.size(); ++step)
    EXPECT_EQ(drained.outcome.records[step].loss, overlapping.outcome.records[step].loss);
  EXPECT_TRUE(has_note(drained.outcome, "no steps overlap"));
  EXPECT_FALSE(has_note(overlapping.outcome, "no steps overlap"));
}

TEST(StalenessRun, SaysFirstThatConvergenceIsNotShown) {
  const WorkFolder folder;
  const TinyRun::End run = TinyRun(folder.path().string(), lagging("zebra")).run();
  ASSERT_FALSE(run.outcome.notes.empty());
  EXPECT_NE(run.outcome.notes[0].find("is not shown"), std::string::npos);
}

}  // namespace
}  // namespace hetermoe
