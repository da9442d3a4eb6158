#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "hetermoe/base/index.h"
#include "tests/train/tiny_run.h"

// What a run reads, whatever it runs on.
namespace hetermoe {
namespace {

/// Two sources, three to one, documents of some length, masked.
Dataset two_sources() {
  Dataset out;
  out.masked = true;
  for (const i64 s : {0, 1}) {
    Source source;
    source.name = source.domain = s == 0 ? "first" : "second";
    source.share = s == 0 ? 0.75 : 0.25;
    TokenBuilder tokens(TokenType::kU8);
    std::vector<i64> starts;
    for (i64 i = 0; i < 1000; ++i) {
      if (i % (s == 0 ? 13 : 29) == 0) starts.push_back(i);
      tokens.add((i * 37 + s * 11) % 251);
    }
    source.all.append(tokens.finish(), starts);
    source.train = source.all.part(0, 900);
    source.validation = source.all.part(900, 100);
    out.sources.push_back(std::move(source));
  }
  return out;
}

TrainOutcome train(const std::string& folder, const Settings& settings) {
  const TinyRun rig(folder, settings);
  const Processes alone;
  return Trainer(rig.job, rig.model, rig.cluster, rig.plan, two_sources(), alone, Checkpoints::kOn).run();
}

std::vector<u64> hashes_of(const TrainOutcome& outcome) {
  std::vector<u64> out;
  for (const StepRecord& record : outcome.records) out.push_back(record.tokens_hash);
  return out;
}

TEST(DataRuns, AResumedRunUnderAnotherPlanReadsWhatOneInOneGoReads) {
  const WorkFolder folder;
  const std::vector<u64> expected = hashes_of(train(folder / "whole", {{"train.steps", "6"}}));
  ASSERT_EQ(expected.size(), 6U);
  EXPECT_EQ(std::set<u64>(expected.begin(), expected.end()).size(), 6U);
  std::vector<u64> got = hashes_of(train(folder / "parts", {{"train.steps", "4"}}));
  const TrainOutcome rest = train(folder / "parts", {{"train.steps", "6"}, {"strategy", "dist-ep"}});
  EXPECT_EQ(rest.first_step, 4);
  const std::vector<u64> more = hashes_of(rest);
  got.insert(got.end(), more.begin(), more.end());
  EXPECT_EQ(got, expected);
  EXPECT_NE(hashes_of(train(folder / "other", {{"train.seed", "2"}})), expected);
}

TEST(DataRuns, ValidationIsThatOfTheSourcesByTheirShares) {
  const WorkFolder folder;
  const TrainOutcome out = train(folder / "run", {{"train.steps", "1"}, {"train.validation_sequences", "4"}});
  const Validation last = out.validations().at(0);
  ASSERT_EQ(last.sources.size(), 2U);
  EXPECT_EQ(last.sources[1].name, "second");
  EXPECT_NE(last.sources[0].loss, last.sources[1].loss);
  EXPECT_DOUBLE_EQ(last.loss, 0.75 * last.sources[0].loss + 0.25 * last.sources[1].loss);
  EXPECT_NEAR(last.loss, std::log(256.0), 0.5);  // nothing is learned after one step
}

/// Experts where their tokens are have no owners that could wait for each other; validation has turns forward
/// alone.
TEST(DataRuns, RoundRobinTurnsLearnWhatOneDeviceLearns) {
  const WorkFolder folder;
  const Settings steps = {
      {"train.steps", "3"}, {"train.validate_every", "2"}, {"train.validation_sequences", "4"}};
  Settings one = steps, turns = steps;
  one.insert(one.end(), {{"strategy", "single"}, {"plan.attention", "0"}});
  turns.insert(turns.end(), {{"strategy", "roundpipe"}, {"cluster", "rtx4090x8"}, {"plan.attention", "0,1"}});
  const TrainOutcome expected = train(folder / "one", in_fp64(one)),
                     got = train(folder / "turns", in_fp64(turns));
  ASSERT_EQ(got.records.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) EXPECT_NEAR(got.records[i].loss, expected.records[i].loss, 1e-10);
  ASSERT_EQ(got.validations().size(), expected.validations().size());
  ASSERT_FALSE(got.validations().empty());
  EXPECT_NEAR(got.validations().back().loss, expected.validations().back().loss, 1e-10);
}

}  // namespace
}  // namespace hetermoe
