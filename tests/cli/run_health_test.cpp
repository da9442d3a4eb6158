#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <thread>

#include "tests/cli/program.h"
#include "tests/support/case_count.h"

// verify --step and doctor --cluster as a user runs them.
namespace hetermoe {
namespace {

ProgramResult train(const WorkFolder& folder, std::vector<std::string> more = {}) {
  more.insert(more.begin(), "--json");
  return run_hetermoe(train_words(folder, more));
}

TEST(Output, ResultsOfAnotherRunAreNotReplacedWithoutAWord) {
  const WorkFolder folder;
  const std::string first = train(folder).err;  // what is learned, and whose times are told
  EXPECT_TRUE(first.starts_with("learns from ")) << first;
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 2) << first;
  const std::vector<std::string> anew = {"--train.steps", "7", "--train.learning_rate", "0.002",
                                         "--no-checkpoint.resume"};
  const ProgramResult other = train(folder, anew);
  EXPECT_EQ(other.code, 0);
  EXPECT_TRUE(contains(other.err,
                       fmt::format("[{}] has the results of another run, which differs in train.steps, "
                                   "train.learning_rate, checkpoint.resume: its metrics.jsonl is begun anew "
                                   "now, its other files are replaced as this run goes on\n",
                                   folder / "run")))
      << other.err;
}

TEST(Output, ARunThatGoesOnReplacesNothingAndSaysSo) {
  const WorkFolder folder;
  const std::string first = train(folder).err;  // what is learned, and whose times are told
  EXPECT_TRUE(first.starts_with("learns from ")) << first;
  EXPECT_EQ(std::count(first.begin(), first.end(), '\n'), 2) << first;
  const std::string again = train(folder).err;  // nothing is left to do
  EXPECT_FALSE(contains(again, "replaced")) << again;
  const ProgramResult longer = train(folder, {"--train.steps", "7"});
  EXPECT_FALSE(contains(longer.err, "replaced")) << longer.err;
  EXPECT_TRUE(
      contains(longer.err, "goes on from " + (folder / "run/checkpoints/step-00000006") + ", step 6\n"))
      << longer.err;
}

ProgramResult verify_step(const WorkFolder& folder, const std::string& step) {
  return run_hetermoe({"verify", folder / "run/job.json", "--step", step});
}

TEST(Output, AFolderThatIsMovedUnderARunIsMissedAtItsEnd) {
  const WorkFolder folder;
  Child run(HM_BINARY_DIR "/hetermoe", train_words(folder, {"--train.steps", "120", "--checkpoint.every", "0",
                                                            "--clock.kind", "virtual"}));
  // Files are replaced with the first step and then not for two seconds.
  const auto has_begun = [&] {
    std::ifstream in(folder / "run/metrics.jsonl");
    return std::count(std::istreambuf_iterator<char>(in), {}, '\n') >= 3;
  };
  for (int tries = 0; tries < 60000 && !has_begun(); ++tries)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  std::filesystem::rename(folder / "run", folder / "moved");
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(contains(result.out, folder / "run" + " was moved to ")) << result.out;
  EXPECT_TRUE(contains(result.out, "/moved during the run: metrics.jsonl")) << result.out;
  EXPECT_TRUE(std::filesystem::exists(folder / "run/summary.json"));
  EXPECT_TRUE(std::filesystem::exists(folder / "moved/metrics.jsonl"));
}

// Claim (VerifyStep.*): a step is repeated from its checkpoint to the bit, and another last bit is seen
TEST(VerifyStep, AStepIsRepeatedToTheBitFromItsCheckpoint) {
  const WorkFolder folder;
  ASSERT_EQ(train(folder).code, 0);
  const std::vector<std::string> files = folder.contents();
  for (const auto& [step, from] : std::vector<std::pair<std::string, std::string>>{
           {"5", "the checkpoint of step 4"}, {"6", "the checkpoint of step 4"}, {"3", "the start"}}) {
    const ProgramResult result = verify_step(folder, step);
    EXPECT_EQ(result.code, 0) << result.out << result.err;
    EXPECT_TRUE(contains(result.out, "PASSED: step " + step)) << result.out;
    EXPECT_TRUE(contains(result.out, "from " + from + ": equal to the bit")) << result.out;
  }
  EXPECT_EQ(folder.contents(), files);  // nothing is written
  // Another job goes on: the steps before it are not its own.
  ASSERT_EQ(train(folder, {"--train.steps", "8", "--train.learning_rate", "0.02"}).code, 0);
  EXPECT_EQ(verify_step(folder, "7").code, 0);
  const ProgramResult refused = verify_step(folder, "5");
  EXPECT_EQ(refused.code, 2) << refused.out;
  EXPECT_TRUE(
      contains(refused.err, "step 5 was taken by an earlier job, whose checkpoint of step 6 is here: "))
      << refused.err;
  EXPECT_TRUE(contains(refused.err, "train.learning_rate is ")) << refused.err;
}

TEST(VerifyStep, AnotherLossInTheLastBitFails) {
  const WorkFolder folder;
  ASSERT_EQ(train(folder).code, 0);
  std::string lines;
  std::istringstream in(read_text(folder / "run/metrics.jsonl"));
  for (std::string line; std::getline(in, line);) {
    Json json = parse_json(line, "metrics");
    if (json["step"] == 5) json["loss"] = std::nextafter(json["loss"].get<double>(), 0.0);
    lines += json.dump() + "\n";
  }
  write_text(folder / "run/metrics.jsonl", lines);
  const ProgramResult result = verify_step(folder, "5");
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(contains(result.out, "FAILED: step 5")) << result.out;
  EXPECT_EQ(verify_step(folder, "6").code, 0);
}

TEST(VerifyStep, WhatTheRunDidNotLeaveIsNamed) {
  const WorkFolder folder;
  ASSERT_EQ(train(folder).code, 0);
  EXPECT_TRUE(contains(verify_step(folder, "7").err, "metrics.jsonl] has no step 7, but 1 to 6\n"));
  const std::string text = read_text(folder / "run/metrics.jsonl");
  write_text(folder / "run/metrics.jsonl",
             text.substr(0, text.find("\n") + 1) + text.substr(text.rfind("\n", text.size() - 2) + 1));
  EXPECT_TRUE(contains(verify_step(folder, "3").err, "metrics.jsonl] has no step 3, but 1, 6\n"));
  std::filesystem::remove(folder / "run/metrics.jsonl");
  const ProgramResult result = verify_step(folder, "5");
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "metrics.jsonl] cannot read")) << result.err;
}

TEST(DoctorCluster, MeasuresEveryPairOfAClusterAndOfAJobThatNamesOne) {
  const WorkFolder folder;
  for (const std::string& what : {std::string("demo"), folder.file("job.yaml", "cluster: demo\n")}) {
    const ProgramResult result = run_hetermoe({"doctor", "--cluster", what, "--json"});
    EXPECT_EQ(result.code, 0) << result.err;
    const Json json = parse_json(result.out, "stdout");
    EXPECT_EQ(json.at("processes"), 1);
    ASSERT_EQ(json.at("pairs").size(), 6U);
    EXPECT_EQ(json.at("pairs")[0].at("a"), "device 0 (A40/1000#0)");
    for (const Json& pair : json.at("pairs")) EXPECT_GT(pair.at("latency_s").get<double>(), 0);
  }
  const ProgramResult text = run_hetermoe({"doctor", "--cluster", "demo"});
  EXPECT_TRUE(contains(text.out, "6 pairs, median  same process")) << text.out;
  EXPECT_EQ(run_hetermoe({"doctor", "--cluster", "nowhere"}).code, 2);
}

TEST(LaunchReplan, NeedsARunOfTheProgram) {
  const ProgramResult result = run_hetermoe({"launch", "--replan", "--", "sh", "-c", "true"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "[--replan] needs a command with `hetermoe train`")) << result.err;
}

// ---- exit codes ----

/// Where checkpoints should go is a file: the first write of one fails, after step 2.
TEST(ExitCode, AFileThatCannotBeWrittenInMidRunIsNoWrongInput) {
  const WorkFolder folder;
  folder.file("run/checkpoints", "in the way");
  const ProgramResult result = train(folder);
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(contains(result.err, "cannot create folder")) << result.err;
}

TEST(ExitCode, AFileThatCannotBeReadBeforeTheFirstStepIsWrongInput) {
  const WorkFolder folder;
  EXPECT_EQ(train(folder, {"--data.paths", folder / "none"}).code, 2);
}

TEST(Launch, RestartsARunWhoseFilesCouldNotBeWritten) {
  const WorkFolder folder;
  folder.file("run/checkpoints", "in the way");
  std::vector<std::string> words = {"launch", "--pause", "0",  "--restarts",
                                    "1",      "--json",  "--", HM_BINARY_DIR "/hetermoe"};
  const std::vector<std::string> train =
      train_words(folder, {"--train.steps", "2", "--checkpoint.every", "1"});
  words.insert(words.end(), train.begin(), train.end());
  const ProgramResult result = run_hetermoe(words);
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(contains(result.out, "\"restarts\": 1")) << result.out;
}

/// README: what a newcomer runs first learns more than how often each byte occurs, and no router collapses.
TEST(FirstRuns, LearnMoreThanHowOftenBytesOccurWithoutWarnings) {
  if (!testing::every_case()) GTEST_SKIP() << "trains for two minutes: ./dev check-all";
  for (const char* job : {"tour", "demo"}) {
    const WorkFolder folder;
    const std::string file = fmt::format(HM_SOURCE_DIR "/configs/jobs/{}.yaml", job);
    const Json run = json_of({"train", file, "--json", "--output", folder / job}).at("executed");
    EXPECT_LT(run.at("validation_loss").get<double>(), run.at("unigram_entropy").get<double>()) << job;
    EXPECT_EQ(run.at("warnings"), Json::array()) << job;
  }
}

}  // namespace
}  // namespace hetermoe
