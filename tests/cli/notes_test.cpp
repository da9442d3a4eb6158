#include <gtest/gtest.h>

#include "tests/cli/program.h"

// Sentences beside figures: --json has those of the text, and a model without experts none of experts.
namespace hetermoe {
namespace {

TEST(Data, JsonHasTheNotesOfTheText) {
  const WorkFolder folder;
  folder.file("texts/a.txt", std::string(2000, 'x'));
  folder.file("texts/b.png", std::string("\0\1\2", 3));
  folder.file("texts/c.jsonl", "{\"text\": \"\"}\n{\"text\": \"some words\"}\n");
  const std::vector<std::string> words = {"data", "--data.paths", folder / "texts", "--train.seq_len", "16"};
  const ProgramResult text = run_hetermoe(words);
  ASSERT_EQ(text.code, 0) << text.err;
  const Json notes = json_of({words[0], words[1], words[2], words[3], words[4], "--json"}).at("notes");
  EXPECT_EQ(notes, Json({"all paths: 1 file skipped, which holds NUL bytes: .png",
                         "all paths: 1 document without tokens"}));
  for (const Json& note : notes)
    EXPECT_TRUE(contains(text.out, "\n" + note.get<std::string>() + "\n")) << note << text.out;
  EXPECT_EQ(json_of({words[0], words[1], folder / "texts/a.txt", words[3], words[4], "--json"}).at("notes"),
            Json::array());
}

TEST(Data, JsonSaysWhatIsCutOfConversations) {
  const WorkFolder folder;
  const std::string path =
      folder.file("x.jsonl", "{\"prompt\": \"a\", \"completion\": \"" + std::string(90, 'b') +
                                 "\"}\n{\"prompt\": \"long\", "
                                 "\"completion\": \"answer\"}\n");
  const Json json = json_of({"data", "--data.paths", path, "--train.seq_len", "48", "--data.template",
                             "plain", "--data.validation_share", "0", "--json"});
  ASSERT_EQ(json.at("notes").size(), 1U) << json.at("notes");
  EXPECT_TRUE(contains(json.at("notes")[0], "1 of 2 conversations is longer than train.seq_len"))
      << json.at("notes");
}

TEST(Simulate, JsonHasNotesAndWarnings) {
  const auto simulated = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"simulate", "--model", "tiny", "--train.seq_len", "16", "--json"});
    return json_of(more);
  };
  const Json few = simulated({"--cluster", "o1", "--train.sequences", "16", "--train.microbatches", "4"});
  ASSERT_EQ(few.at("notes").size(), 1U);
  EXPECT_TRUE(contains(few.at("notes")[0], "A40#4, A40#5 get no sequences: a microbatch of 4 sequences"));
  EXPECT_EQ(few.at("warnings"), Json::array());
  const Json enough = simulated({"--cluster", "o1", "--train.sequences", "24", "--train.microbatches", "4"});
  EXPECT_EQ(enough.at("notes"), Json::array());
  const Json idle = json_of({"simulate", "--model", "demo", "--cluster", "rtx4090x8", "--strategy",
                             "roundpipe", "--plan.offload", "all", "--plan.window", "2", "--train.seq_len",
                             "16", "--train.sequences", "32", "--train.microbatches", "4", "--json"});
  ASSERT_EQ(idle.at("warnings").size(), 1U);
  EXPECT_TRUE(contains(idle.at("warnings")[0], "rounds of 2 microbatches leave")) << idle.at("warnings");
}

/// What nobody asked for is named before anything else.
TEST(Notes, WhatIsTakenByDefaultIsTheFirstLine) {
  const auto first_line = [](const std::vector<std::string>& words) {
    const std::string out = run_hetermoe(words).out;
    return out.substr(0, out.find('\n'));
  };
  const char *model = "model demo (--model names another)",
             *cluster = "cluster demo (--cluster names another)";
  EXPECT_EQ(first_line({"train", "--dry-run"}), fmt::format("taken by default: {}, {}", model, cluster));
  EXPECT_EQ(first_line({"simulate", "--model", "tiny"}), fmt::format("taken by default: {}", cluster));
  EXPECT_EQ(first_line({"verify", "--cluster", "demo", "--train.seq_len", "16", "--train.sequences", "4",
                        "--train.microbatches", "2"}),
            fmt::format("taken by default: {}", model));
  const WorkFolder folder;
  for (const std::vector<std::string>& words :
       {train_words(folder, {"--dry-run"}), {"simulate", "--model", "tiny", "--cluster", "demo"}})
    EXPECT_FALSE(contains(run_hetermoe(words).out, "by default")) << words[0];
}

/// The keys that nearly every job writes are in --help, the others where it says.
TEST(Help, HasTheUsualKeysOfAJob) {
  for (const char* command : {"train", "simulate"}) {
    const std::string help = run_hetermoe({command, "--help"}).out;
    for (const char* key : {"--model ", "--cluster ", "--strategy ", "--output ", "--train.steps ",
                            "--data.paths ", "`hetermoe options` lists", "--plan"})
      EXPECT_TRUE(contains(help, key)) << command << " " << key << help;
    EXPECT_FALSE(contains(help, "--balancer.name")) << help;
  }
}

TEST(DryRun, JsonHasTheNotesOfTheText) {
  const WorkFolder folder;
  const std::vector<std::string> words = {"--dry-run", "--model", "tiny-llama"};
  const std::string text = run_hetermoe(train_words(folder, words)).out;
  const Json json = json_of(train_words(folder, {words[0], words[1], words[2], "--json"}));
  ASSERT_EQ(json.at("notes").size(), 2U);
  EXPECT_TRUE(contains(json.at("notes")[0], "learns from ")) << json.at("notes");
  for (const Json& note : json.at("notes"))
    EXPECT_TRUE(contains(text, note.get<std::string>() + "\n")) << note << text;
}

TEST(Train, AModelWithoutExpertsShowsNothingOfExperts) {
  const WorkFolder folder;
  const ProgramResult result = run_hetermoe(train_words(folder, {"--model", "tiny-llama"}));
  ASSERT_EQ(result.code, 0) << result.err;
  const std::string steps = result.out.substr(result.out.find("step lines:"));
  EXPECT_TRUE(contains(steps, "step 1/6  loss ")) << result.out;
  for (const char* word : {"expert", "Gini", "aux"}) EXPECT_FALSE(contains(steps, word)) << word << steps;
  const std::string metrics = read_text(folder / "run/metrics.jsonl");
  for (const char* key : {"expert", "gini", "aux_loss"}) EXPECT_FALSE(contains(metrics, key)) << metrics;
  EXPECT_TRUE(contains(metrics, "\"attention_wait\":"));
  const Json row = Json::parse(read_text(folder / "run/summary.json")).at("rows").at(0);
  EXPECT_FALSE(row.at("utilization").contains("expert"));
  const std::string page = read_text(folder / "run/report.html");
  for (const char* words : {"of 0 experts", "experts (share of", "experts that the run chose",
                            "owners of experts", "data-name=\"expert\"", "Load of the experts"})
    EXPECT_FALSE(contains(page, words)) << words;
}

TEST(Notes, DevicesThatHaveBothRolesAreNamed) {
  const auto notes = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"simulate", "--model", "tiny", "--cluster", "demo", "--json"});
    return json_of(words).at("notes");
  };
  EXPECT_EQ(notes({"--strategy", "zebra", "--plan.attention", "0,1", "--plan.experts", "1,2"}),
            Json({"A40/1000#1 computes attention and experts in turn: it is in plan.attention and in "
                  "plan.experts"}));
  EXPECT_EQ(
      notes({"--strategy", "zebra", "--plan.attention", "2,3"}),
      Json({"V100/1000#2, V100/1000#3 compute attention and experts in turn: they are in plan.attention and "
            "among the devices that have experts by default"}));
  EXPECT_EQ(notes({"--strategy", "zebra", "--plan.attention", "0,1", "--plan.experts", "2,3"}),
            Json::array());
  EXPECT_EQ(notes({"--strategy", "ep", "--plan.attention", "2,3"}), Json::array()) << "it gives all both";
}

}  // namespace
}  // namespace hetermoe
