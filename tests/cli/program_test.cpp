#include "tests/cli/program.h"
#include "hetermoe/cli/option_hint.h"

#include <gtest/gtest.h>

#include "hetermoe/base/error.h"
#include "hetermoe/base/version.h"
#include "hetermoe/cli/command.h"

namespace hetermoe {
namespace {

TEST(Program, WithoutACommandListsThemAll) {
  const ProgramResult result = run_hetermoe({});
  EXPECT_EQ(result.code, 2);
  for (const Command& command : commands()) EXPECT_TRUE(contains(result.out, command.name)) << command.name;
}

TEST(Program, TellsItsVersion) {
  const ProgramResult result = run_hetermoe({"--version"});
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(result.out, std::string("hetermoe ") + version() + "\n");
}

TEST(Program, EveryCommandHasHelpWithAnExampleAndJson) {
  EXPECT_EQ(run_hetermoe({"--help"}).code, 0);
  for (const Command& command : commands()) {
    const ProgramResult result = run_hetermoe({command.name, "--help"});
    EXPECT_EQ(result.code, 0) << command.name;
    EXPECT_TRUE(contains(result.out, "Example:\n  hetermoe " + std::string(command.name))) << result.out;
    EXPECT_TRUE(contains(result.out, "--json")) << command.name;
    EXPECT_EQ(result.err, "");
  }
}

TEST(Inspect, GivesTheKeysOfTheContract) {
  const Json json = json_of({"inspect", "mixtral-8x7b", "--json"});
  EXPECT_EQ(json.at("model_type"), "mixtral");
  EXPECT_EQ(json.at("total_params"), 46702792704);
  EXPECT_EQ(json.at("active_params"), 12879925248);
  std::int64_t total = 0, active = 0;
  double flops = 0;
  for (const Json& part : json.at("parts")) {
    total += part.at("params").get<std::int64_t>();
    active += part.at("active_params").get<std::int64_t>();
    flops += part.at("forward_flops_per_token").get<double>();
  }
  EXPECT_EQ(total, json.at("total_params"));
  EXPECT_EQ(active, json.at("active_params"));
  EXPECT_DOUBLE_EQ(flops, json.at("forward_flops_per_token").get<double>());
}

TEST(Inspect, PartsAddUpForEveryFamily) {
  for (const char* name : {"qwen3-30b-a3b", "qwen3-235b-a22b", "olmoe-1b-7b", "deepseek-v2-lite",
                           "deepseek-v2", "deepseek-v3", "tiny"}) {
    const Json json = json_of({"inspect", name, "--json", "--seq", "256"});
    std::int64_t total = 0, active = 0;
    for (const Json& part : json.at("parts")) {
      total += part.at("params").get<std::int64_t>();
      active += part.at("active_params").get<std::int64_t>();
    }
    EXPECT_EQ(total, json.at("total_params")) << name;
    EXPECT_EQ(active, json.at("active_params")) << name;
    EXPECT_EQ(json.at("seq_len"), 256);
    EXPECT_EQ(run_hetermoe({"inspect", name}).code, 0);
  }
}

TEST(Inspect, TheLedgerOfActivations) {
  const Json layers = json_of({"inspect", "mixtral-8x7b", "--activations", "--json"}).at("activations");
  ASSERT_EQ(layers.size(), 1);
  // Per token: input and routing, and rows of two experts with their weights; off: 22528 numbers of 2 bytes
  // and 42 of fp32, and gate and up of two experts.
  EXPECT_EQ(layers[0].at("kept_bytes_recomputed"), 8192 + 24 + 2 * (8192 + 4));
  EXPECT_EQ(layers[0].at("kept_bytes_off"), 8192 + 24 + 2 * (8192 + 4) + 2 * 22528 + 4 * 42 + 2 * 2 * 28672);
  // Without both normed rows and the rows of experts.
  EXPECT_EQ(layers[0].at("kept_bytes_select"),
            layers[0].at("kept_bytes_off").get<double>() - 2 * 2 * 4096 - 2 * (8192 + 4));
  const std::string text = run_hetermoe({"inspect", "deepseek-v2-lite", "--activations"}).out;
  EXPECT_TRUE(contains(text, "a layer with a dense MLP"));
  EXPECT_TRUE(contains(text, "a layer with experts"));
  EXPECT_FALSE(json_of({"inspect", "tiny", "--json"}).contains("activations"));
}

TEST(Inspect, ShowsClusters) {
  const Json json = json_of({"inspect", "--cluster", "o1", "--json"});
  EXPECT_EQ(json.at("name"), "o1");
  EXPECT_FALSE(json.at("devices").empty());
  const ProgramResult text = run_hetermoe({"inspect", "--cluster", "o1"});
  EXPECT_EQ(text.code, 0);
  for (const Json& device : json.at("devices"))
    EXPECT_TRUE(contains(text.out, device.at("name").get<std::string>()));
  EXPECT_TRUE(contains(text.out, "\nspeed: factor of the cluster file on that of the type; "));
}

TEST(Doctor, TellsHowFastThisProcessorIs) {
  const Json speed = json_of({"doctor", "--json"}).at("cpu_speed");
  for (const char* key : {"fp32_flops", "bf16_flops", "fp16_flops", "copy_bytes_per_s"})
    EXPECT_GT(speed.at(key).get<double>(), 0) << key;
  EXPECT_TRUE(contains(run_hetermoe({"doctor"}).out, "products fp32 "));
}

TEST(Doctor, TellsHowManyHardwareQueuesAGpuGets) {
  EXPECT_EQ(json_of({"doctor", "--json"}).at("gpu").at("hardware_queues"), "32");
}

TEST(Doctor, FindsItsConfigurations) {
  const Json json = json_of({"doctor", "--json"});
  EXPECT_EQ(json.at("hetermoe"), version());
  EXPECT_GT(json.at("cores").get<std::int64_t>(), 0);
  EXPECT_GT(json.at("memory_bytes").get<double>(), 1e8);
  EXPECT_GT(json.at("configs").at("models").get<std::int64_t>(), 10);
  const ProgramResult text = run_hetermoe({"doctor"});
  EXPECT_EQ(text.code, 0);
  EXPECT_TRUE(contains(text.out, json.at("torch").get<std::string>()));
}

const std::vector<std::string> kSmallStep = {"--model",
                                             "tiny",
                                             "--cluster",
                                             "demo",
                                             "--train.seq_len",
                                             "16",
                                             "--train.sequences",
                                             "8",
                                             "--train.microbatches",
                                             "2"};

std::vector<std::string> with(std::vector<std::string> words, const std::vector<std::string>& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

TEST(Simulate, WritesFilesOfWhichEachCanBeFedBack) {
  const WorkFolder folder;
  const Json made =
      json_of(with({"simulate", "--json", "--strategy", "zebra", "--output", folder / "a"}, kSmallStep));
  EXPECT_GT(made.at("step_s").get<double>(), 0);
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"a", "a/cluster.json", "a/job.json", "a/model.json",
                                                         "a/plan.json", "a/schedule.txt", "a/summary.json",
                                                         "a/timeline.json", "a/trace.json"}));
  const Json again = json_of({"simulate", folder / "a/job.json", "--json"});
  EXPECT_EQ(again, made);
  const Json from_plan = json_of({"simulate", "--json", "--model", "tiny", "--plan", folder / "a/plan.json"});
  EXPECT_EQ(from_plan.at("schedule_hash"), made.at("schedule_hash"));
  const Json report = json_of({"report", folder / "a/timeline.json", "-o", folder / "r.html", "--trace",
                               folder / "t.json", "--json"});
  EXPECT_EQ(report.at("rows").at(0).at("simulated_step_s"), made.at("step_s"));
  EXPECT_TRUE(contains(read_text(folder / "r.html"), "<html"));
  EXPECT_TRUE(read_json(folder / "t.json").contains("traceEvents"));
}

TEST(Simulate, WithoutOutputWritesNothing) {
  const WorkFolder folder;
  const std::string job = folder.file("job.yaml", "model: tiny\noutput: " + (folder / "out") + "\n");
  EXPECT_EQ(run_hetermoe(with({"simulate", job}, kSmallStep)).code, 0);
  EXPECT_EQ(folder.contents(), std::vector<std::string>{"job.yaml"});
}

TEST(Simulate, SkewedRoutingTakesLonger) {
  const auto step = [](const std::string& routing) {
    return json_of(with({"simulate", "--json", "--routing", routing, "--train.seq_len", "64"},
                        {"--model", "demo"}))
        .at("step_s")
        .get<double>();
  };
  EXPECT_GT(step("zipf:2"), step("uniform") * 1.01);
  EXPECT_NEAR(step("zipf:0"), step("uniform"), step("uniform") * 0.05);
}

TEST(Options, EverySpellingReachesTheJob) {
  const auto job = [](const std::vector<std::string>& words) { return json_of(with({"options"}, words)); };
  EXPECT_EQ(job({"--train.steps", "7"}).at("train").at("steps"), 7);
  EXPECT_EQ(job({"--train.steps=7", "--train.steps=8"}).at("train").at("steps"), 8);
  EXPECT_EQ(job({"--train.seq-len", "9"}).at("train").at("seq_len"), 9);
  EXPECT_EQ(job({"--plan.window", "-1"}).at("plan").at("window"), -1);
  EXPECT_EQ(job({"--plan.attention", "[0,1]"}).at("plan").at("attention"), Json({0, 1}));
  EXPECT_EQ(job({"--plan.attention", "0,1"}).at("plan").at("attention"), Json({0, 1}));
  EXPECT_EQ(job({"--plan.attention=[0, 1]"}).at("plan").at("attention"), Json({0, 1}));
  for (const std::vector<std::string>& no : {std::vector<std::string>{"--no-plan.row_dedup"},
                                             {"--no-plan.row-dedup"},
                                             {"--plan.row_dedup=false"},
                                             {"--plan.row_dedup", "false"}}) {
    EXPECT_EQ(job(no).at("plan").at("row_dedup"), false) << no[0];
  }
  EXPECT_EQ(job({"--plan.row_dedup"}).at("plan").at("row_dedup"), true);
  const ProgramResult yes = run_hetermoe({"options", "--plan.row_dedup", "yes"});
  EXPECT_EQ(yes.code, 2);
  EXPECT_EQ(yes.err, "[--plan.row_dedup] wrong type: got string \"yes\", expected true or false\n");
  for (const std::string key : {"--plan.row_dedup", "--plan.row-dedup"}) {
    const ProgramResult one = run_hetermoe({"options", key, "1"});
    EXPECT_EQ(one.code, 2);
    EXPECT_EQ(one.err, "[--plan.row_dedup] wrong type: got integer 1, expected true or false\n") << key;
  }
  EXPECT_EQ(job({"--train.steps", "1", "--plan.row_dedup"}).at("train").at("steps"), 1);
}

TEST(Options, WhatOtherTrainersCallThemIsKnownWithEitherHyphen) {
  const std::vector<std::string> names = {"seq", "train.steps", "train.sequences", "plan.attention_dtype"};
  for (const std::string name : {"seq_len", "seq-len"}) EXPECT_EQ(nearest_option(name, names), "seq");
  for (const std::string name : {"batch_size", "batch-size"})
    EXPECT_EQ(nearest_option(name, names), "train.sequences");
  for (const std::string name : {"max_steps", "max-steps", "steps"})
    EXPECT_EQ(nearest_option(name, names), "train.steps");
  EXPECT_EQ(nearest_option("max-steps", {"seq"}), "") << "only what the command has";
  EXPECT_EQ(nearest_option("train.dtype", names), "plan.attention_dtype");
}

TEST(Options, WhatAFinishedPlanSaysIsNotWrittenBesideIt) {
  const WorkFolder folder;
  const std::string plan = folder / "plan.json";
  ASSERT_EQ(run_hetermoe({"plan", "--model", "demo", "--cluster", "demo", "--seq", "64", "--sequences", "8",
                          "-o", plan})
                .code,
            0);
  const auto simulated = [&](const std::vector<std::string>& words) {
    return run_hetermoe(with({"simulate", "--model", "demo", "--cluster", "demo", "--plan", plan}, words));
  };
  EXPECT_EQ(simulated({}).code, 0);
  const ProgramResult key = simulated({"--plan.row_dedup", "true"});  // the default, too
  EXPECT_EQ(key.code, 2);
  EXPECT_TRUE(key.err.starts_with("[--plan.row_dedup] got true, but the plan comes from ")) << key.err;
  const ProgramResult count = simulated({"--train.microbatches", "77"});
  EXPECT_EQ(count.code, 2);
  EXPECT_TRUE(count.err.starts_with("[--train.microbatches] got 77, but the plan of ")) << count.err;
  const ProgramResult tuned =
      run_hetermoe({"compare", "--model", "d1", "--cluster", "o1", "--seq", "4096", "--plan.chunks", "4"});
  EXPECT_EQ(tuned.code, 2);
  EXPECT_TRUE(tuned.err.starts_with("[--plan.chunks] got 4 with --seq, ")) << tuned.err;
}

TEST(Options, AJobFileMayStandAnywhere) {
  const WorkFolder folder;
  const std::string file = folder.file("job.yaml", "train: {steps: 3, seq_len: 4}");
  for (const std::vector<std::string>& words :
       {std::vector<std::string>{file, "--train.steps", "7"}, {"--train.steps", "7", file}}) {
    const Json job = json_of(with({"options"}, words));
    EXPECT_EQ(job.at("train").at("steps"), 7);
    EXPECT_EQ(job.at("train").at("seq_len"), 4);
  }
}

// Claim: `docs/options.md` is what the program prints
TEST(Options, TheirPageIsUpToDate) {
  const ProgramResult result = run_hetermoe({"options", "--markdown"});
  EXPECT_EQ(read_text(HM_SOURCE_DIR "/docs/options.md"), result.out)
      << "mend it by: build/hetermoe options --markdown > docs/options.md";
  EXPECT_EQ(run_hetermoe({"options"}).code, 0);
  EXPECT_TRUE(json_of({"options", "--json"}).is_array());
}

}  // namespace
}  // namespace hetermoe
