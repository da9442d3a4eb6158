#include <gtest/gtest.h>

#include "tests/cli/program.h"

// Every bad input gives one clear error that names file, key, value and what was expected, a non-zero exit,
// and leaves nothing behind.
namespace hetermoe {
namespace {

class BadInput : public ::testing::Test {
 protected:
  /// Runs all commands that take a job; each must fail with these parts in its one error.
  void expect_refused(const std::vector<std::string>& words, const std::vector<std::string>& parts,
                      const std::vector<std::string>& commands = {"train", "simulate"}) {
    const std::vector<std::string> before = folder.contents();
    for (const std::string& command : commands) {
      std::vector<std::string> all = {command};
      all.insert(all.end(), words.begin(), words.end());
      if (command != "report" && command != "inspect")
        all.insert(all.end(), {"--output", folder / "results"});
      const ProgramResult result = run_hetermoe(all);
      SCOPED_TRACE(command + ": " + result.err);
      EXPECT_EQ(result.code, 2);
      EXPECT_TRUE(result.err.starts_with("[")) << "where is missing";
      EXPECT_EQ(result.err.back(), '\n');
      for (const std::string& part : parts) EXPECT_TRUE(contains(result.err, part)) << part;
      EXPECT_EQ(result.out, "");
      EXPECT_EQ(folder.contents(), before);
    }
  }
  void expect_job_refused(const std::string& yaml, const std::vector<std::string>& parts) {
    expect_refused({folder.file("job.yaml", yaml)}, parts);
  }
  WorkFolder folder;
};

// Claim (BadInput.*): bad input: one clear error, non-zero exit, nothing half-written; [more of
// it](#bad-input)
TEST_F(BadInput, UnknownCommand) {
  const ProgramResult result = run_hetermoe({"trian"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(result.err.starts_with("[trian] unknown command. Known: plan, train, ")) << result.err;
  EXPECT_TRUE(contains(result.err, "Did you mean \"train\"?")) << result.err;
}

TEST_F(BadInput, UnknownOption) {
  expect_refused({"--train.stepz", "3"},
                 {"[--train.stepz] unknown option", "Did you mean \"--train.steps\"?"});
  expect_refused({"--steps=3"}, {"[--steps] unknown option", "Did you mean \"--train.steps\"?"});
  expect_refused({"--jsno"}, {"[--jsno] unknown option", "Did you mean \"--json\"?"});
  expect_refused({"-x"}, {"[-x] unknown option"});
  expect_refused({"a.yaml", "b.yaml"}, {"[b.yaml] unexpected word"});
}

TEST_F(BadInput, DepthGroups) {
  const auto refused = [&](const std::string& groups, const std::string& part) {
    expect_refused({"--strategy", "af-pipe", "--plan.depth_groups", groups}, {"plan.depth_groups", part});
  };
  refused("0", "got 0, expected >= 1");
  refused("3", "got 3 groups of devices with attention, expected at most as many as devices (2)");
  refused("[1,9]", "got 9 groups, expected at most as many as layers of demo (4)");
  refused("[1,2,3]", "got 3 numbers, expected one or two");
  expect_refused(
      {"--strategy", "af-pipe", "--plan.nics", "2"},
      {"[nics] devices of node new have 4 NICs for themselves, expected at most the 1 of the node"});
}

TEST_F(BadInput, TeamsAndWires) {
  const auto refused = [&](const std::string& key, const std::string& value, const std::string& part) {
    expect_refused({"--strategy", "sp-ep", "--plan.team", "4", key, value}, {key.substr(2), part});
  };
  refused("--plan.head_weights", "1,1", "got 2 entries, expected one per device with attention (4)");
  refused("--plan.head_weights", "0,0,0,0", "got 0 for all devices, expected some above 0");
  expect_refused({"--strategy", "sp-ep", "--plan.team", "3"},
                 {"[plan.team] got 3, expected a divisor of the 4 devices"});
  expect_refused({"--plan.error_feedback", "true"},
                 {"[error_feedback] got true, but gradients travel as they are kept"});
  expect_refused({"--plan.wire_dtype", "fp9"}, {"plan.wire_dtype", "fp8_row, fp8_group"});
  for (const char* key : {"plan.wire_dtype", "plan.wire_backward"}) {
    for (const char* wire : {"fp8_row", "fp8_group"})
      expect_refused({std::string("--") + key, wire},
                     {fmt::format("[{}] got {}, expected fp64: verify compares in fp64", key, wire)},
                     {"verify"});
  }
}

/// Options of other trainers lead to the keys of docs/from-other-tools.md.
TEST_F(BadInput, OptionsOfOtherToolsNameTheKey) {
  for (const auto& [theirs, ours] :
       std::vector<std::pair<std::string, std::string>>{{"--model_name_or_path", "train.init_from"},
                                                        {"--per-device-train-batch-size", "train.sequences"},
                                                        {"--lora_rank", "train.lora.rank"},
                                                        {"--cutoff_len", "train.seq_len"},
                                                        {"--save_steps", "checkpoint.every"},
                                                        {"--output_dir", "output"},
                                                        {"--global-batch-size", "train.sequences"}}) {
    expect_refused({theirs, "1"}, {"unknown option", "Did you mean \"--" + ours + "\"?"}, {"train"});
  }
}

TEST_F(BadInput, OptionWithoutItsValue) {
  const ProgramResult result = run_hetermoe({"simulate", "--train.steps"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "--train.steps")) << result.err;
}

TEST_F(BadInput, WrongTypeOfACommandsOwnOption) {
  const ProgramResult result = run_hetermoe({"inspect", "tiny", "--seq", "long"});
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(result.err, "[--seq] wrong type: got \"long\", expected an integer\n");
}

TEST_F(BadInput, UnknownKey) {
  expect_job_refused("train: {step: 3}",
                     {"job.yaml train] unknown key \"step\".", "Did you mean \"steps\"?"});
  expect_job_refused("modle: tiny", {"job.yaml] unknown key \"modle\".", "Did you mean \"model\"?"});
}

TEST_F(BadInput, WrongType) {
  expect_job_refused("train: {steps: many}",
                     {"job.yaml train.steps]", "got string \"many\"", "expected an integer"});
  expect_job_refused("train: 7", {"job.yaml train]", "got integer 7", "expected a mapping"});
  expect_refused({"--train.steps", "1.5"}, {"[--train.steps]", "got number 1.5", "expected an integer"});
}

TEST_F(BadInput, OutOfRange) {
  expect_job_refused("train: {steps: -1}", {"job.yaml train.steps]", "got -1", "expected >= 0"});
  expect_job_refused("train: {steps: 9223372036854775808}",
                     {"job.yaml train.steps]", "got 9223372036854775808"});
  expect_job_refused("train: {learning_rate: 1e999}", {"job.yaml:1]", "1e999"});
}

TEST_F(BadInput, MoreSequencesThanAJobCanHave) {
  const std::string limit = "expected at most 1000000, which is what a job can have (train.sequences)";
  for (const std::string command : {"plan", "compare"}) {
    for (const std::vector<std::string>& words :
         {std::vector<std::string>{"--sequences", "10000000"}, {"--tokens", "50000000000"}}) {
      std::vector<std::string> all = {command, "--model", "d1", "--cluster", "o1", "--seq", "4096"};
      all.insert(all.end(), words.begin(), words.end());
      const ProgramResult result = run_hetermoe(all);
      EXPECT_EQ(result.code, 2) << command;
      EXPECT_TRUE(result.err.starts_with("[" + words[0] + "] got 1")) << result.err;
      EXPECT_TRUE(contains(result.err, limit)) << result.err;
    }
  }
}

TEST_F(BadInput, ImpossibleShape) {
  expect_job_refused("model: tiny\ntrain: {sequences: 2, microbatches: 3}",
                     {"[train.microbatches] got 3, expected at most train.sequences (2)"});
  expect_job_refused("model: tiny\ntrain: {seq_len: 99999999}", {"seq_len", "99999999", "positions"});
  const std::string odd =
      folder.file("odd.json", R"({"model_type": "mixtral", "vocab_size": 256, "hidden_size": 30,
      "num_hidden_layers": 1, "num_attention_heads": 7, "num_key_value_heads": 2, "intermediate_size": 8,
      "num_local_experts": 2, "num_experts_per_tok": 3})");
  expect_refused({odd}, {"odd.json"}, {"inspect"});
}

TEST_F(BadInput, SettingsOfRouters) {
  expect_refused({"--train.router_jitter", "1"}, {"[--train.router_jitter]", "got 1"});
  expect_refused({"--train.router_z_loss", "-0.1"}, {"[--train.router_z_loss]", "got -0.1", "expected >= 0"});
  expect_refused({"--train.capacity_factor", "none"}, {"[--train.capacity_factor]", "expected a number"});
  expect_refused({"--model", "tiny", "--train.seq_len", "16", "--train.forced_balance", "true",
                  "--routing.replay", "none.routes"},
                 {"[train.forced_balance] cannot go with routing.replay"});
}

TEST_F(BadInput, Adapters) {
  const std::vector<std::string> tiny = {"--model",           "tiny", "--train.seq_len", "16",
                                         "--train.lora.rank", "4"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), tiny.begin(), tiny.end());
    return more;
  };
  expect_refused(with({"--train.lora.targets", "*.nothing"}),
                 {"[train.lora.targets] \"*.nothing\" matches no matrix of model tiny"});
  expect_refused(with({"--train.freeze", "*"}), {"[train.freeze] cannot go with train.lora"});
  expect_refused({"--train.lora.rank", "-1"}, {"[--train.lora.rank]", "got -1"});
}

TEST_F(BadInput, MissingFile) {
  const std::string none = folder / "none.yaml";
  expect_refused({none}, {none, "No such file"});
  expect_refused({"--model", none}, {none}, {"train", "simulate"});
  expect_refused({"--cluster", none}, {none}, {"train", "simulate"});
  expect_refused({"--model", "tiny", "--plan.file", none}, {none, "No such file"}, {"train", "simulate"});
  expect_refused({none, "-o", folder / "report.html"}, {none, "No such file"}, {"report"});
  expect_refused({none}, {none}, {"inspect"});
}

TEST_F(BadInput, AFolderForAFile) { expect_refused({folder / "."}, {"is a folder, expected a file"}); }

TEST_F(BadInput, UnreadableText) {
  const std::vector<std::string> tiny = {"--model", "tiny", "--train.seq_len", "16", "--data.paths"};
  const auto with_path = [&](const std::string& path) {
    std::vector<std::string> words = tiny;
    words.push_back(path);
    return words;
  };
  const std::vector<std::string> commands = {"train", "compare", "verify"};
  expect_refused(with_path(folder / "no_text"), {"[data.paths]", "no_text", "no such file"}, commands);
  expect_refused(with_path(folder.file("binary", std::string("\0\1\2", 3))),
                 {"[data.paths]", "binary", "is no text"}, commands);
  expect_refused(with_path(folder.file("short", "abc")), {"[data.paths]", "too little text", "got 3 tokens"},
                 commands);
  const std::string latin1 = folder.file("latin1.yaml", "model: caf\xe9");
  expect_refused({latin1}, {"latin1.yaml:1]", "0xe9", "expected UTF-8 text"});
}

TEST_F(BadInput, ClusterWithoutDevices) {
  for (const char* yaml : {"name: x\nnodes: []", "name: x\nnodes: [{name: a, devices: []}]", "name: x"}) {
    expect_refused({"--cluster", folder.file("c.yaml", yaml)}, {"c.yaml", "device"}, {"train", "simulate"});
  }
  expect_refused({"--cluster", folder.file("c.yaml", "name: x\nnodes: [{name: a, devices: [A10O]}]")},
                 {"c.yaml nodes[0].devices[0]", "A10O", "Did you mean \"A10"}, {"train", "simulate"});
}

TEST_F(BadInput, PlanThatDoesNotFitTheModel) {
  const ProgramResult made =
      run_hetermoe({"simulate", "--model", "tiny", "--train.seq_len", "16", "--output", folder / "a"});
  ASSERT_EQ(made.code, 0) << made.err;
  const std::string plan = folder / "a/plan.json";
  expect_refused({"--model", "tiny-qwen3", "--plan.file", plan},
                 {plan, "was made for model tiny and cannot serve model tiny-qwen3"});
  expect_refused({"--model", "tiny", "--cluster", "one", "--plan.file", plan},
                 {plan, "cluster one", "device 1"});
  expect_refused({"--model", "tiny", "--train.seq_len", "17", "--plan.file", plan},
                 {plan, "train.seq_len is 17"});
}

TEST_F(BadInput, TruncatedJson) {
  const ProgramResult made =
      run_hetermoe({"simulate", "--model", "tiny", "--train.seq_len", "16", "--output", folder / "a"});
  ASSERT_EQ(made.code, 0) << made.err;
  for (const char* name : {"a/plan.json", "a/timeline.json"}) {
    const std::string text = read_text(folder / name);
    write_text(folder / name, text.substr(0, text.size() / 2));
  }
  const std::string truncated = "is the file truncated?";
  expect_refused({"--model", "tiny", "--plan.file", folder / "a/plan.json"}, {"plan.json:", truncated},
                 {"train", "verify", "simulate"});
  expect_refused({folder / "a/timeline.json", "-o", folder / "r.html"}, {"timeline.json:", truncated},
                 {"report"});
  expect_refused({folder.file("config.json", "{\"model_type\": \"mix")}, {"config.json:1]", truncated},
                 {"inspect"});
}

TEST_F(BadInput, UnknownNames) {
  expect_refused({"--model", "mixtral-8x7c"}, {"mixtral-8x7c", "Did you mean \"mixtral-8x7b\"?"},
                 {"train", "simulate"});
  expect_refused({"--cluster", "dmeo"}, {"dmeo", "Did you mean \"demo\"?"}, {"train", "simulate"});
  expect_refused({"--strategy", "zerba"}, {"zerba", "Did you mean \"zebra\"?"}, {"train", "simulate"});
  expect_refused({"--routing", "zipf:x"}, {"[--routing] got \"zipf:x\", expected uniform or zipf:EXPONENT"},
                 {"simulate"});
}

TEST_F(BadInput, AnOutputThatCannotBeWritten) {
  const std::string file = folder.file("occupied", "a file");
  const ProgramResult result =
      run_hetermoe({"simulate", "--model", "tiny", "--train.seq_len", "16", "--output", file});
  EXPECT_NE(result.code, 0);
  EXPECT_TRUE(contains(result.err, "occupied")) << result.err;
  EXPECT_EQ(folder.contents(), std::vector<std::string>{"occupied"});
  EXPECT_EQ(read_text(file), "a file");
}

TEST_F(BadInput, AFileWithoutEndOrOfAbsurdSize) {
  expect_refused({"/dev/zero"},
                 {"[/dev/zero] is too large for a text file", "expected at most 67108864 bytes"});
  expect_refused({"--cluster", "/dev/zero"}, {"[/dev/zero]", "too large"}, {"simulate"});
  expect_refused({"--model", "tiny", "--train.sequences", "1000000000000"},
                 {"[--train.sequences]", "got 1000000000000"});
}

TEST_F(BadInput, AModelThatNoMachineHoldsNamesParametersAndMemory) {
  const std::string huge =
      folder.file("huge.json", R"({"model_type": "mixtral", "vocab_size": 256, "hidden_size": 1048576,
      "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 8, "intermediate_size": 4194304,
      "num_local_experts": 8, "num_experts_per_tok": 2})");
  expect_refused({"--model", huge}, {"[model] huge has ", "training keeps", "this machine has"},
                 {"train", "verify"});
}

TEST_F(BadInput, ANameThatIsTooLong) {
  const std::string name(5000, 'x');
  for (const char* option : {"--model", "--cluster"})
    expect_refused({option, name}, {"xxx]"}, {"train", "simulate"});
  expect_refused({name}, {"File name too long"});
  expect_refused({"--model", "tiny", "--plan.file", name}, {"File name too long"});
  expect_refused({name, "-o", folder / "r.html"}, {"File name too long"}, {"report"});
  const ProgramResult result = run_hetermoe({"simulate", "--model", "tiny", "--output", name});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "File name too long")) << result.err;
}

TEST_F(BadInput, EmptyNamesAndFiles) {
  expect_refused({""}, {"word 1 is empty"});
  expect_refused({folder.file("empty.yaml", "")}, {"empty.yaml] holds no key of a job"});
  for (const char* option : {"--model", "--cluster", "--strategy"})
    expect_refused({option, ""}, {"is empty"});
}

TEST_F(BadInput, AVocabularySmallerThanTheText) {
  Json config = read_json(HM_SOURCE_DIR "/configs/models/tiny.json");
  config["vocab_size"] = 37;
  expect_refused({"--model", folder.file("small.json", config.dump()), "--train.seq_len", "2", "--data.paths",
                  folder.file("text", std::string(200, 'z'))},
                 {"[model] small has a vocabulary of 37 tokens", "tokens up to 122", "at least 123"},
                 {"train", "compare", "verify"});
}

TEST_F(BadInput, NamesAreShownAndNotObeyed) {
  const std::string yaml = "name: \"a\\nb\\e[2J\"\nnodes: [{name: n, devices: [A40]}]";
  expect_refused({"--cluster", folder.file("c.yaml", yaml)},
                 {"c.yaml name] got string", "control characters"});
  const std::string job = folder.file("x\x1b[31m\n.yaml", "modle: tiny");
  const ProgramResult result = run_hetermoe({"simulate", job});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(contains(result.err, "x\\x1b[31m\\n.yaml]")) << result.err;
  EXPECT_FALSE(contains(result.err, "\x1b"));
  const ProgramResult key = run_hetermoe({"simulate", folder.file("k.yaml", "\"a\\e[2J\": 1")});
  EXPECT_FALSE(contains(key.err, "\x1b")) << key.err;
}

TEST_F(BadInput, OutputsAreTestedBeforeTheWork) {
  const std::string file = folder.file("occupied", "a file");
  const std::vector<std::string> before = folder.contents();
  const std::vector<std::vector<std::string>> commands = {
      {"plan", "--model", "none-such", "--cluster", "demo", "-o", file + "/plan.json"},
      {"profile", "--model", "none-such", "-o", file + "/p.json"},
      {"report", "none-such", "-o", file + "/r.html"},
      {"simulate", "--model", "none-such", "--output", file + "/s"}};
  for (const std::vector<std::string>& words : commands) {
    const ProgramResult result = run_hetermoe(words);
    EXPECT_EQ(result.code, 2) << words[0];
    EXPECT_TRUE(contains(result.err, "occupied is no folder")) << result.err;
  }
  const ProgramResult train =
      run_hetermoe({"train", "--model", "tiny", "--data.paths", folder / "no_text", "--output", file + "/t"});
  EXPECT_TRUE(contains(train.err, "occupied is no folder")) << train.err;
  EXPECT_EQ(folder.contents(), before);
}

TEST_F(BadInput, TimedStepsBelowZero) {
  const ProgramResult result = run_hetermoe({"compare", "--model", "tiny", "--timed-steps", "-5"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("[--timed-steps] out of range: got -5, expected >= 0"), std::string::npos)
      << result.err;
}

}  // namespace
}  // namespace hetermoe
