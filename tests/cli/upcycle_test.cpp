#include <gtest/gtest.h>

#include "hetermoe/train/checkpoint/resume.h"
#include "tests/cli/program.h"
#include "tests/weights/folders.h"

// Growth of experts on the command line.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

using Words = std::vector<std::string>;

ProgramResult run(const std::string& command, Words words) {
  words.insert(words.begin(), command);
  return run_hetermoe(words);
}
Json json_of(const std::string& command, Words words) {
  words.push_back("--json");
  const ProgramResult result = run(command, words);
  EXPECT_EQ(result.code, 0) << result.err;
  return result.code == 0 ? Json::parse(result.out) : Json();
}

/// A job in fp64 for the small folders, which know 40 tokens.
std::string job_file(const WorkFolder& folder) {
  std::string text;
  for (int i = 0; i < 4000; ++i) text += i % 9 == 8 ? '\n' : static_cast<char>(' ' + i % 7);
  const Json job = {
      {"cluster", "demo3"},
      {"output", folder / "run"},
      {"data", {{"paths", {folder.file("text.txt", text)}}, {"tokenizer", "bytes"}}},
      {"plan", {{"attention_dtype", "fp64"}, {"expert_dtype", "fp64"}, {"wire_dtype", "fp64"}}},
      {"train",
       {{"seq_len", 8}, {"sequences", 4}, {"microbatches", 2}, {"steps", 4}, {"validation_sequences", 0}}},
      {"checkpoint", {{"every", 2}}}};
  return folder.file("job.json", job.dump());
}

// Claim (UpcycleCommand.TheLoss*): the loss right after growth is as predicted on the source, to 1e-10: every
// mode, partly filled instances, uneven copies, groups that count twins twice
TEST(UpcycleCommand, TheLossRightAfterIsAsPredicted) {
  const WorkFolder folder;
  const std::string job = job_file(folder);
  for (const std::string family : {"mixtral", "olmoe", "deepseek_v2"}) {
    for (const std::string mode : {"fixed-k", "wide-k"}) {
      const Json json = json_of(
          "upcycle", {parity_folder(family), "-o", folder / (family + mode), "--factor", "3", "--mode", mode,
                      "--noise", "0", "--job", job, "--measure", "--batches", "3", "--verify"});
      const Json& loss = json.at("loss");
      EXPECT_NEAR(loss.at("after"), loss.at("predicted"), 1e-10) << family << mode;
      const double jump = std::abs(loss.at("after").get<double>() - loss.at("before").get<double>());
      if (mode == "wide-k")
        EXPECT_LE(jump, 1e-10) << family;
      else
        EXPECT_GT(jump, 1e-6) << family;
      EXPECT_EQ(json.at("after").at("experts").get<i64>(), 3 * json.at("before").at("experts").get<i64>());
    }
  }
}

/// Also where an expert fills a part of its instances, has more of them than others, or counts twice in its
/// group.
TEST(UpcycleCommand, TheLossOfPartlySeenInstancesIsAsPredicted) {
  const WorkFolder folder;
  const std::string job = job_file(folder);
  const std::vector<Words> cases = {{"qwen3_moe", "2", "uniform"},  // top-k 3
                                    {"mixtral", "2", "weight"},
                                    {"olmoe", "3", "random"},
                                    {"deepseek_v3", "2", "uniform"}};
  for (const Words& grown : cases) {
    const Json json =
        json_of("upcycle", {parity_folder(grown[0]), "-o", folder / grown[0], "--factor", grown[1], "--score",
                            grown[2], "--noise", "0", "--job", job, "--measure", "--batches", "3"});
    const Json& loss = json.at("loss");
    EXPECT_NEAR(loss.at("after"), loss.at("predicted"), 1e-10) << grown[0];
    EXPECT_GT(std::abs(loss.at("after").get<double>() - loss.at("before").get<double>()), 1e-6) << grown[0];
  }
}

TEST(UpcycleCommand, AFolderShrinksToWhatItGrewFrom) {
  const WorkFolder folder;
  const std::string job = job_file(folder);
  json_of("upcycle", {parity_folder("mixtral"), folder / "wide", "--mode", "wide-k", "--noise", "0"});
  const Json json = json_of("upcycle", {folder / "wide", "-o", folder / "again", "--factor", "1/2", "--mode",
                                        "wide-k", "--verify", "--measure", "--job", job});
  EXPECT_EQ(json.at("after").at("experts"), 4);
  EXPECT_EQ(json.at("after").at("top_k"), 2);
  EXPECT_NEAR(json.at("loss").at("after"), json.at("loss").at("before"), 1e-10);
  expect_same_tensors(read_all(folder / "again"), read_all(parity_folder("mixtral")));
  // A run likewise.
  ASSERT_EQ(run("train", {job, "--train.init_from", parity_folder("mixtral"), "--grow.at", "2", "--grow.mode",
                          "wide_k"})
                .code,
            0);
  const Json shrunk = json_of("upcycle", {folder / "run", "-o", folder / "small", "--factor", "1/2", "--mode",
                                          "wide-k", "--measure"});
  EXPECT_EQ(shrunk.at("moments"), "split");
  const Json went_on =
      json_of("train", {shrunk.at("job").get<std::string>(), "--train.steps", "6"}).at("executed");
  EXPECT_EQ(went_on.at("first_step"), 4);
  EXPECT_NEAR(shrunk.at("loss").at("after"), shrunk.at("loss").at("before"), 1e-3);
}

TEST(UpcycleCommand, ADenseLayerAmongOthersGetsExpertsToo) {
  const WorkFolder folder;
  const Json json =
      json_of("upcycle", {parity_folder("qwen3_moe"), "-o", folder / "out", "--layers", "1", "--verify"});
  EXPECT_EQ(json.at("layers"), Json::array({1}));
  EXPECT_EQ(json.at("shards"), 3);
  EXPECT_GT(json.at("after").at("parameters"), json.at("before").at("parameters"));
  EXPECT_EQ(run("inspect", {folder / "out"}).code, 0);
}

TEST(UpcycleCommand, OfRandomExpertsTheLossIsMeasuredAlone) {
  const WorkFolder folder;
  const Json loss = json_of("upcycle", {parity_folder("mixtral"), "-o", folder / "out", "--mode", "random",
                                        "--verify", "--measure", "--job", job_file(folder)})
                        .at("loss");
  EXPECT_FALSE(loss.contains("predicted"));
  EXPECT_NE(loss.at("after"), loss.at("before"));
}

/// Each score hands out as many copies; the best expert by gradients is that of the reference.
TEST(UpcycleCommand, EveryScoreHandsOutAllCopies) {
  const WorkFolder folder;
  const std::string job = job_file(folder);
  const Words train = {job, "--train.init_from", parity_folder("mixtral"), "--routing.record",
                       folder / "a.routes"};
  ASSERT_EQ(run("train", train).code, 0);
  std::set<std::string> counts;
  for (const Words& score : std::vector<Words>{{"weight"},
                                               {"random"},
                                               {"load", "--counts", folder / "a.routes"},
                                               {"gradient", "--job", job},
                                               {"saliency", "--job", job}}) {
    Words words = {parity_folder("mixtral"), "-o", folder / score[0], "--score"};
    words.insert(words.end(), score.begin(), score.end());
    const Json json = json_of("upcycle", words);
    for (const Json& layer : json.at("layers")) {
      i64 sum = 0, most = 0;
      for (const i64 count : layer.at("instances").get<std::vector<i64>>())
        sum += count, most = std::max(most, count);
      EXPECT_EQ(sum, 8) << score[0];
      EXPECT_EQ(most, 4) << score[0];
    }
    counts.insert(json.at("layers").dump());
  }
  EXPECT_GE(counts.size(), 3u);
}

TEST(UpcycleCommand, ARunGoesOnWithMoreExperts) {
  const WorkFolder folder;
  ASSERT_EQ(run("train", {job_file(folder), "--train.init_from", parity_folder("olmoe")}).code, 0);
  const Json grown = json_of("upcycle", {folder / "run", "-o", folder / "grown", "--mode", "wide-k",
                                         "--noise", "0", "--measure", "--score", "uniform"});
  EXPECT_EQ(grown.at("step"), 4);
  EXPECT_EQ(grown.at("moments"), "split");
  EXPECT_NEAR(grown.at("loss").at("after"), grown.at("loss").at("before"), 1e-10);
  const Json went_on =
      json_of("train", {grown.at("job").get<std::string>(), "--train.steps", "6"}).at("executed");
  EXPECT_EQ(went_on.at("first_step"), 4);
  EXPECT_EQ(went_on.at("steps"), 2);
  const std::optional<FoundCheckpoint> newest = checkpoint_in(folder / "grown", [](const std::string&) {});
  EXPECT_EQ(newest->info.step, 6);
  EXPECT_EQ(load_model(newest->path.string()).num_experts, 12);
  const ProgramResult fisher = run("upcycle", {folder / "run", "-o", folder / "fisher", "--score", "fisher"});
  EXPECT_EQ(fisher.code, 0) << fisher.err;
  // A configuration that was changed in a checkpoint would grow another model than the run has trained.
  const fs::path config = checkpoint_in(folder / "run", [](const std::string&) {})->path / "config.json";
  Json changed = read_json(config);
  changed["rope_theta"] = 12345.0;
  write_text(config, changed.dump());
  const ProgramResult refused =
      run("upcycle", {folder / "run", "-o", folder / "changed", "--mode", "wide-k"});
  EXPECT_NE(refused.code, 0);
  EXPECT_NE(refused.err.find("config.json] is not what checkpoint.json has of it"), std::string::npos)
      << refused.err;
  EXPECT_FALSE(fs::exists(folder / "changed"));
}

TEST(UpcycleCommand, WhatIsWrongIsToldInOneSentence) {
  const WorkFolder folder;
  const std::string mixtral = parity_folder("mixtral");
  folder.file("full/thesis.tex", "x");
  const auto expect = [&](Words words, const std::string& part) {
    const ProgramResult result = run("upcycle", words);
    EXPECT_EQ(result.code, 2) << part;
    EXPECT_NE(result.err.find(part), std::string::npos) << result.err;
    EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  };
  const std::string out = folder / "out";
  expect({mixtral, "-o", out, "--factor", "1"}, "adds no experts");
  expect({mixtral, "-o", out, "--factor", "half"}, "got half, expected a whole number, or 1/2");
  expect({mixtral, "-o", out, "--factor", "1/0"}, "got 1/0, expected a whole number, or 1/2");
  expect({mixtral, "-o", out, "--factor", "1/2"},
         "layer 0, expert 0: the router row of instance 2 has cosine");
  expect({mixtral, "-o", out, "--factor", "1/2", "--score", "weight"}, "expected uniform");
  expect({mixtral, "-o", out, "--factor", "1/3"}, "expected a divisor of it");
  expect({mixtral, "-o", out, "--experts", "10"}, "expected a multiple of the 4 experts");
  expect({mixtral, "-o", out, "--experts", "8", "--factor", "2"}, "expected one of them");
  expect({mixtral, "-o", out, "--top-k", "99"}, "[--top-k] got 99, but ");
  expect({parity_folder("qwen3_moe"), "-o", out, "--layers", "1", "--top-k", "1"}, "[--top-k] got 1, but ");
  expect({mixtral, "-o", mixtral}, "is the folder that the weights are read from");
  expect({mixtral, "-o", folder / "full"}, "holds other files");
  expect({mixtral, "-o", out, "--mode", "wider"}, "unknown value \"wider\"");
  expect({mixtral, "-o", out, "--score", "gradient"}, "says nothing of data and plan");
  expect({mixtral, "-o", out, "--score", "load"}, "asks for a routing trace");
  expect({mixtral, "-o", out, "--score", "fisher", "--job", job_file(folder)},
         "second moments of an optimizer");
  expect({mixtral, "-o", out, "--moments", "split"}, "has no moments");
  expect({mixtral, "-o", out, "--mode", "wide-k", "--score", "weight"}, "as many copies of every expert");
  expect({parity_folder("deepseek_v3"), "-o", out, "--mode", "wide-k"}, "twins count twice");
  expect({parity_folder("deepseek_v2"), "-o", out, "--score", "weight"}, "breaks the groups");
  expect({parity_folder("llama"), "-o", out}, "so say how many to make");
  expect({parity_folder("llama"), "-o", out, "--experts", "4", "--layers", "0"}, "expected all layers");
  expect({parity_folder("llama"), "-o", out, "--experts", "4", "--measure"},
         "experts that are made of an MLP");
  for (const auto& [key, value] : std::vector<std::pair<std::string, std::string>>{
           {"--mode", "wide-k"}, {"--noise", "0"}, {"--cap", "2"}, {"--cosine", "0.9"}})
    expect({parity_folder("llama"), "-o", out, "--experts", "4", key, value},
           "[" + key + "] is given, expected none");
  expect({mixtral, "-o", out, "--mode", "random", "--score", "weight"}, "nothing is copied");
  expect({mixtral, "-o", out, "--mode", "random", "--factor", "1/2"}, "no copies to merge");
  expect({parity_folder("qwen3"), "-o", out, "--experts", "4", "--layers", "1-"},
         "ranges of layers such as 0-2,5");
  expect({mixtral, "-o", out, "--layers", "1"}, "has no dense layers");
  expect({parity_folder("qwen3_moe"), "-o", out, "--layers", "0-1"}, "one number of experts for all layers");
  expect({parity_folder("qwen3_moe"), "-o", out, "--layers", "1", "--factor", "2"}, "expected none");
  EXPECT_FALSE(fs::exists(out));
}

}  // namespace
}  // namespace hetermoe
