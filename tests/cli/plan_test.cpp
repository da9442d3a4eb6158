#include <gtest/gtest.h>

#include <sstream>

#include "hetermoe/cli/command.h"
#include "tests/cli/program.h"

namespace hetermoe {
namespace {

TEST(PlanCommand, WritesAPlanThatSimulateTakes) {
  const WorkFolder folder;
  const std::string plan = folder / "plan.json";
  const ProgramResult made = run_hetermoe({"plan", "--model", "demo", "--cluster", "demo", "--seq", "512",
                                           "--sequences", "8", "--json", "-o", plan});
  ASSERT_EQ(made.code, 0) << made.err;
  const Json made_json = parse_json(made.out, "output");
  EXPECT_EQ(made_json.at("tokens_per_s_range").size(), 2U);
  EXPECT_EQ(made_json.at("constants").at("A40/1000"), "assumed");
  const ProgramResult simulated =
      run_hetermoe({"simulate", "--model", "demo", "--cluster", "demo", "--plan", plan, "--json"});
  EXPECT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_FALSE(parse_json(simulated.out, "output").empty());
  // What train takes by the same name, `launch --replan` reads as well.
  const ProgramResult trained =
      run_hetermoe({"train", "--model", "demo", "--cluster", "demo", "--plan", plan, "--dry-run", "--json"});
  ASSERT_EQ(trained.code, 0) << trained.err;
  EXPECT_EQ(parse_json(trained.out, "output")["job"]["plan"]["file"], plan);
  EXPECT_EQ(parse_train({"--plan", plan}).overrides, (Overrides{{"plan.file", plan}}));
  EXPECT_TRUE(contains(run_hetermoe({"simulate", "--plan", plan, "--strategy", "ep"}).err,
                       "[--strategy] got ep with --plan: that file says all of a plan, give one of them"));
  EXPECT_NE(run_hetermoe({"train", "--plam", plan}).err.find("Did you mean \"--plan\"?"), std::string::npos);
}

/// As many devices of other types take the plan, but it is not theirs.
TEST(SimulateCommand, SaysThatAPlanWasMadeForOtherDevices) {
  const WorkFolder folder;
  const std::string plan = folder / "plan.json";
  ASSERT_EQ(run_hetermoe({"plan", "--model", "demo", "--cluster", "demo", "--seq", "512", "--sequences", "8",
                          "-o", plan})
                .code,
            0);
  const std::string other =
      folder.file("other.yaml", "name: other\nnodes:\n  - {name: a, devices: [T4 x4]}\n");
  const std::string said =
      "the plan was made for 2 A40/1000, 2 V100/1000, and cluster other has 4 T4: another plan may";
  EXPECT_TRUE(
      contains(run_hetermoe({"simulate", "--model", "demo", "--cluster", other, "--plan", plan}).out, said));
  const std::string less = folder.file("less.yaml", "name: less\nnodes:\n  - {name: a, devices: [T4 x2]}\n");
  const std::string refused =
      run_hetermoe({"simulate", "--model", "demo", "--cluster", less, "--plan", plan}).err;
  EXPECT_TRUE(contains(refused,
                       "the plan was made for 2 A40/1000, 2 V100/1000 and cannot serve model demo on "
                       "cluster less of 2 T4"))
      << refused;
  const ProgramResult own =
      run_hetermoe({"simulate", "--model", "demo", "--cluster", "demo", "--plan", plan});
  EXPECT_FALSE(contains(own.out, "was made for")) << own.out;
}

/// Of what a command prints.
std::string last_line(const std::string& out) {
  const std::size_t end = out.find_last_not_of('\n');
  if (end == std::string::npos) return "";
  const std::size_t begin = out.rfind('\n', end);
  return out.substr(begin == std::string::npos ? 0 : begin + 1,
                    end - (begin == std::string::npos ? 0 : begin + 1) + 1);
}

TEST(PlanCommand, EndsWithTheCommandThatTrains) {
  const WorkFolder folder;
  const std::string plan = folder / "plan.json";
  const std::vector<std::string> ask = {"plan",  "--model", "demo",        "--cluster", "demo",
                                        "--seq", "256",     "--sequences", "8"};
  const ProgramResult unwritten = run_hetermoe(ask);
  EXPECT_EQ(last_line(unwritten.out),
            fmt::format("train: {} train --model demo --cluster demo --plan plan.json --train.seq_len 256 "
                        "--train.sequences 8",
                        hetermoe_path()));
  EXPECT_TRUE(contains(unwritten.out, "\nwith -o plan.json the plan is written; then\n")) << unwritten.out;
  std::vector<std::string> writes = ask;
  writes.insert(writes.end(), {"-o", plan});
  EXPECT_EQ(last_line(run_hetermoe(writes).out),
            fmt::format("train: {} train --model demo --cluster demo --plan {} --train.seq_len 256 "
                        "--train.sequences 8",
                        hetermoe_path(), plan));
}

TEST(PlanCommand, SaysHowAPlanIsTrainedOnGpus) {
  const auto says = [](const std::string& model, const std::string& cluster, const std::string& launcher) {
    const std::string out =
        run_hetermoe({"plan", "--model", model, "--cluster", cluster, "--seq", "256", "--sequences", "96"})
            .out;
    const std::string text = fmt::format(
        "\ntrain on its GPUs: {}{} train --model {} --cluster {} --plan plan.json --train.seq_len 256 "
        "--train.sequences 96 --run.device cuda\n",
        launcher, hetermoe_path(), model, cluster);
    EXPECT_TRUE(contains(out, text)) << out;
    return out;
  };
  says("tiny", "rtx3090x4-v100x4", "");
  EXPECT_TRUE(contains(says("d1", "o1", "mpirun -np 12 "),
                       "\n  V100 needs torch for CUDA 12.6: `./dev setup cu126` and `./dev build` on those "
                       "machines (docs/gpu.md)\n"));
  EXPECT_FALSE(contains(says("tiny", "rtx4090x8", ""), "cu126"));
  const std::vector<std::string> emulated = {"plan",  "--model", "demo",        "--cluster", "demo",
                                             "--seq", "256",     "--sequences", "8"};
  EXPECT_FALSE(contains(run_hetermoe(emulated).out, "train on its GPUs"));
}

/// Simulate and the dry run of train, whose last words are equal.
TEST(SimulateCommand, AStepThatDoesNotFitEndsWithThatLine) {
  const std::vector<std::string> job = {
      "--model",         "qwen3-1.7b", "--cluster",         "demo", "--strategy",           "ep",
      "--train.seq_len", "16",         "--train.sequences", "4",    "--train.microbatches", "2"};
  const std::vector<std::vector<std::string>> commands = {
      {"simulate"}, {"train", "--dry-run", "--data.max_bytes", "200000"}};
  for (const std::vector<std::string>& command : commands) {
    std::vector<std::string> words = command;
    words.insert(words.end(), job.begin(), job.end());
    const ProgramResult result = run_hetermoe(words);
    EXPECT_EQ(result.code, 1) << command[0] << result.err;
    EXPECT_TRUE(last_line(result.out).starts_with("the plan does not fit: device V100/1000#2 (16 GiB, "))
        << command[0] << ": " << last_line(result.out);
    words.emplace_back("--json");
    const ProgramResult as_json = run_hetermoe(words);
    EXPECT_EQ(as_json.code, 1) << command[0] << as_json.err;
    EXPECT_FALSE(contains(as_json.out, "the plan does not fit")) << command[0];
    std::vector<std::string> fits = command;
    fits.insert(fits.end(), {"--model", "tiny", "--cluster", "demo", "--train.seq_len", "16"});
    const ProgramResult small = run_hetermoe(fits);
    EXPECT_EQ(small.code, 0) << command[0] << small.err;
    EXPECT_FALSE(contains(small.out, "does not fit")) << command[0];
    EXPECT_TRUE(contains(small.out, "times and memory in fp16\n")) << small.out;
    fits.insert(fits.end(), {"--clock.emulated_dtype", "fp32"});
    EXPECT_TRUE(contains(run_hetermoe(fits).out, "tokens/s; times and memory in fp32\n")) << command[0];
  }
}

/// Of a family that nobody knows here sizes are read, and what is assumed of it is told.
TEST(PlanCommand, AModelOfAnotherFamilyIsPlannedSimulatedAndInspected) {
  const WorkFolder folder;
  const std::string model = folder.file(
      "odd.json",
      R"({"model_type": "strange_moe", "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
          "num_key_value_heads": 2, "vocab_size": 320, "num_local_experts": 4, "num_experts_per_tok": 2,
          "intermediate_size": 128, "max_position_embeddings": 4096})");
  const std::string assumed = "model_type \"strange_moe\" is not trained here; sizes read from ";
  const ProgramResult planned =
      run_hetermoe({"plan", "--model", model, "--cluster", "demo", "--seq", "256", "--sequences", "8"});
  EXPECT_EQ(planned.code, 0) << planned.err;
  EXPECT_TRUE(contains(planned.out, assumed)) << planned.out;
  EXPECT_TRUE(last_line(planned.out).starts_with("simulate: " + hetermoe_path() + " simulate "))
      << planned.out;
  const std::vector<std::string> job = {"--model", model, "--cluster", "demo", "--strategy", "ep"};
  std::vector<std::string> words = {"simulate"};
  words.insert(words.end(), job.begin(), job.end());
  const ProgramResult simulated = run_hetermoe(words);
  EXPECT_EQ(simulated.code, 0) << simulated.err;
  EXPECT_TRUE(simulated.out.starts_with(assumed)) << simulated.out;
  const ProgramResult inspected = run_hetermoe({"inspect", model});
  EXPECT_EQ(inspected.code, 0) << inspected.err;
  EXPECT_TRUE(contains(inspected.out, "odd (strange_moe)")) << inspected.out;
  EXPECT_TRUE(contains(inspected.out, "strange_moe\" is not trained here")) << inspected.out;
  words[0] = "train";
  words.emplace_back("--dry-run");
  const ProgramResult trained = run_hetermoe(words);
  EXPECT_EQ(trained.code, 2);
  EXPECT_TRUE(contains(trained.err, "this model cannot be trained here: model_type: got \"strange_moe\""))
      << trained.err;
}

TEST(PlanCommand, SaysWhatDoesNotFitAndWhy) {
  const ProgramResult result =
      run_hetermoe({"plan", "--model", "deepseek-v3", "--cluster", "demo", "--seq", "4096"});
  EXPECT_EQ(result.code, 2);
  EXPECT_TRUE(result.err.starts_with("[plan] no plan of deepseek-v3 on demo fits.\n")) << result.err;
  EXPECT_TRUE(contains(result.err, "GiB are missing, more or larger devices")) << result.err;
  EXPECT_TRUE(contains(result.err, "\nNone of these alone makes room: ")) << result.err;
  // A way out that fills a line is indented as the others are.
  const ProgramResult helped = run_hetermoe(
      {"plan", "--model", "mixtral-8x7b", "--cluster", "o1", "--seq", "1024", "--sequences", "16"});
  EXPECT_TRUE(contains(helped.err, "\nEach of these alone makes room:\n  ")) << helped.err;
  EXPECT_TRUE(contains(helped.err, "\n  83 GiB of main memory a node (")) << helped.err;
  std::istringstream lines(result.err + helped.err);
  for (std::string line; std::getline(lines, line);) EXPECT_LE(line.size(), 120U) << line;
  const ProgramResult as_json =
      run_hetermoe({"plan", "--model", "deepseek-v3", "--cluster", "demo", "--seq", "4096", "--json"});
  EXPECT_EQ(as_json.code, 2);
  const Json json = parse_json(as_json.out, "output");
  EXPECT_NE(json.at("infeasible"), "");
  EXPECT_TRUE(json.at("ways_out").is_array());
}

TEST(PlanCommand, TellsTimeAndMoneyOfARun) {
  const WorkFolder folder;
  const std::string cluster = folder / "priced.yaml";
  write_text(cluster,
             "device_types:\n"
             "  - {name: A40, like: A40, price_per_hour: 0.4}\n"
             "  - {name: V100, like: V100, price_per_hour: 0.1}\n"
             "nodes: [{devices: [A40 x2, V100 x2]}]\n");
  const std::vector<std::string> ask = {"plan", "--model", "d1", "--cluster", cluster, "--run-tokens", "1e9"};
  std::vector<std::string> as_json = ask;
  as_json.emplace_back("--json");
  const Json money = parse_json(run_hetermoe(as_json).out, "output").at("time_and_money");
  EXPECT_EQ(money.at("run_tokens"), 1e9);
  const Json& best = money.at("plans").at(0);
  EXPECT_EQ(best.at("on_frontier"), true);
  EXPECT_NEAR(best.at("money").get<double>(),
              best.at("per_hour").get<double>() * best.at("seconds").get<double>() / 3600, 1e-9);
  const ProgramResult text = run_hetermoe(ask);
  EXPECT_TRUE(contains(text.out, "Days, cost and kWh are those of a run of 1.0 B tokens.")) << text.out;
  const ProgramResult unpriced =
      run_hetermoe({"plan", "--model", "d1", "--cluster", "o1", "--run-tokens", "1e9"});
  EXPECT_TRUE(contains(unpriced.out, "The cost is not known: no price_per_hour for A40")) << unpriced.out;
}

TEST(PlanCommand, BadInputIsNamed) {
  EXPECT_TRUE(contains(run_hetermoe({"plan", "--run-tokens", "0"}).err, "[--run-tokens] out of range"));
  const auto error = [](std::vector<std::string> words) {
    words.insert(words.begin(), {"plan", "--model", "d1", "--cluster", "o1"});
    return run_hetermoe(words).err;
  };
  EXPECT_TRUE(contains(run_hetermoe({"plan", "--cluster", "o1"}).err, "[--model] is missing. Known: d1"));
  EXPECT_TRUE(contains(run_hetermoe({"plan", "--model", "d1"}).err, "[--cluster] is missing: expected"));
  EXPECT_TRUE(contains(error({"--sequences", "8", "--tokens", "100000"}),
                       "[--tokens] got 100000 with --sequences 8"));
  EXPECT_TRUE(contains(run_hetermoe({"doctor", "--device", "tpu"}).err, "[--device] got \"tpu\""));
  EXPECT_EQ(run_hetermoe({"help", "plan"}).out, run_hetermoe({"plan", "--help"}).out);
  EXPECT_TRUE(contains(error({"--dtype", "fp12"}), "[--dtype] got \"fp12\""));
  EXPECT_TRUE(contains(error({"--dtype", "fp16", "--master", "none"}), "[master] got none, but device 0"));
  EXPECT_TRUE(contains(error({"--idle", "99"}), "[--idle] device 99 does not exist"));
  EXPECT_NE(run_hetermoe({"plan", "--seq", "0"}).code, 0);
}

TEST(CompareCommand, PredictsTunedStrategiesInTheShapeOfTheContract) {
  const ProgramResult result =
      run_hetermoe({"compare", "--model", "d1", "--cluster", "o1", "--seq", "4096,8192", "--strategy",
                    "zebra,ep,ep-ideal,dist-ep,best", "--json"});
  ASSERT_EQ(result.code, 0) << result.err;
  const Json json = parse_json(result.out, "output"), rows = json["rows"];
  EXPECT_EQ(json["rate_factors"].size(), 2U);
  EXPECT_EQ(json["constants"].dump(), R"({"A40":"calibrated","V100":"calibrated","links":"calibrated"})");
  ASSERT_EQ(rows.size(), 10U);
  for (const Json& row : rows) {
    for (const char* key : {"model", "cluster", "seq_len", "strategy", "tokens_per_s", "step_s",
                            "utilization", "experts_moved", "memory_bytes"}) {
      EXPECT_TRUE(row.contains(key)) << key;
    }
    EXPECT_EQ(row["model"], "d1");
    EXPECT_EQ(row["memory_bytes"].size(), 12U);
  }
  EXPECT_GT(rows[0]["tokens_per_s"], rows[1]["tokens_per_s"]);
  EXPECT_GE(rows[4]["tokens_per_s"], rows[0]["tokens_per_s"]);
}

/// The batch is named, and what the ratios are of.
TEST(CompareCommand, SaysItsBatchAndWhatIsOne) {
  const ProgramResult result = run_hetermoe({"compare", "--model", "d1", "--cluster", "o1", "--seq", "4096",
                                             "--sequences", "24", "--strategy", "zebra,ep"});
  ASSERT_EQ(result.code, 0) << result.err;
  for (const char* said : {"zebra = 1", "sequences", "24", "tokens/s"})
    EXPECT_TRUE(contains(result.out, said)) << said << "\n" << result.out;
  EXPECT_FALSE(contains(result.out, "routing-margin")) << result.out;
  const ProgramResult best = run_hetermoe({"compare", "--model", "d1", "--cluster", "o1", "--seq", "4096",
                                           "--sequences", "24", "--strategy", "zebra,best"});
  EXPECT_TRUE(contains(best.out, "best leaves no memory for uneven routing")) << best.out;
}

/// A plan and its simulation say the same of who waits.
TEST(PlanCommand, SaysTheLongestWaitOfSimulate) {
  const WorkFolder folder;
  const std::string plan = folder / "plan.json";
  const auto longest = [](const std::string& out) {
    const std::size_t begin = out.find("Longest wait: ");
    return out.substr(begin, out.find('\n', begin) - begin);
  };
  for (const char* cluster : {"demo", "demo3"}) {
    const ProgramResult made = run_hetermoe(
        {"plan", "--model", "demo", "--cluster", cluster, "--seq", "256", "--sequences", "10", "-o", plan});
    const ProgramResult simulated =
        run_hetermoe({"simulate", "--model", "demo", "--cluster", cluster, "--plan", plan});
    ASSERT_EQ(simulated.code, 0) << simulated.err;
    EXPECT_EQ(longest(made.out), longest(simulated.out));
  }
}

TEST(PlanCommand, FollowsWhatIsTrained) {
  const auto step_of = [](std::vector<std::string> more) {
    more.insert(more.begin(), {"plan", "--model", "demo", "--cluster", "demo", "--seq", "256", "--sequences",
                               "8", "--json"});
    const ProgramResult result = run_hetermoe(more);
    EXPECT_EQ(result.code, 0) << result.err;
    return Json::parse(result.out)["candidates"][0]["step_s"].get<double>();
  };
  const double whole = step_of({}), adapters = step_of({"--lora-rank", "4"});
  EXPECT_LT(adapters, whole);
  EXPECT_LT(step_of({"--freeze", "model.layers.0.*,model.embed_tokens*"}), whole);
  const ProgramResult none = run_hetermoe(
      {"plan", "--model", "demo", "--cluster", "demo", "--lora-rank", "4", "--lora-targets", "*.nothing"});
  EXPECT_EQ(none.code, 2);
  EXPECT_TRUE(contains(none.err, "[train.lora.targets] \"*.nothing\" matches no matrix")) << none.err;
}

/// The commands of a section of a page, in one shell line: all its lines that begin with four blanks.
std::string commands_of(const std::string& page, const std::string& section) {
  const std::string text = read_text(std::string(HM_SOURCE_DIR "/docs/") + page);
  const std::size_t begin = text.find("## " + section + "\n"), end = text.find("\n## ", begin);
  std::istringstream lines(text.substr(begin, end - begin));
  std::string out, line;
  while (std::getline(lines, line))
    if (line.starts_with("    ")) out += line + "\n";
  return out;
}

TEST(Plan, TheCommandsOfItsPageTrainWithoutAWarning) {
  const WorkFolder folder;
  const std::string commands = commands_of("planner.md", "How to go on with a plan");
  ASSERT_TRUE(contains(commands, "train --model demo") && contains(commands, "plan --model demo"))
      << commands;
  const ProgramResult result =
      Child("/bin/sh", {"-ec", "cd \"$1\"; mkdir out build; ln -s \"$2\" build/hetermoe\n" + commands, "sh",
                        folder.path(), hetermoe_path()})
          .wait();
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_FALSE(contains(result.out, "collapses")) << result.out;
  EXPECT_TRUE(std::filesystem::exists(folder / "out/planned/report.html"));
}

}  // namespace
}  // namespace hetermoe
