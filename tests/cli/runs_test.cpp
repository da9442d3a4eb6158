#include <gtest/gtest.h>

#include <pty.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/cli/program.h"

// Runs that do not surprise: what is said before the first step, who has the output folder, how an
// interrupted run ends.
namespace hetermoe {
namespace {

/// Four steps instead of six.
std::vector<std::string> short_train(const WorkFolder& folder, std::vector<std::string> more = {}) {
  more.insert(more.begin(), {"--train.steps", "4"});
  return train_words(folder, more);
}

void damage(const std::filesystem::path& checkpoint) { write_text(checkpoint / "checkpoint.json", "{}"); }

/// Waits until the text is there; fails after a long time.
template <class F>
void wait_for(const F& said, const std::string& text) {
  for (int i = 0; i < 3000 && !contains(said(), text); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  ASSERT_TRUE(contains(said(), text)) << said();
}

// Claim (Resume.*): what a run takes from an earlier one, and what is not as it was, is said before its first
// step; with every checkpoint damaged it stops
TEST(Resume, IsAnnouncedBeforeTheFirstStepWithAllThatIsNotAsItWas) {
  const WorkFolder folder;
  ASSERT_EQ(run_hetermoe(short_train(folder)).code, 0);
  damage(folder / "run/checkpoints/step-00000004");
  const ProgramResult result =
      run_hetermoe(short_train(folder, {"--train.seed", "2", "--train.learning_rate", "0.01", "--strategy",
                                        "ep", "--train.log_every", "1"}));
  EXPECT_EQ(result.code, 0) << result.err;
  const std::string before = result.out.substr(0, result.out.find("step 3/4"));
  for (const char* part :
       {"passes over a checkpoint: [", "step-00000004", "goes on from ", "step-00000002, step 2\n",
        "train.seed is 2, it was 1\n", "train.learning_rate is 0.01, it was 0.001\n",
        "strategy is \"ep\", it was \"zebra\"\n",
        "another plan goes on: ep on devices 0, 1, 2, 3 (4 sequences in 2 microbatches), it was zebra on "
        "devices 0, 1, 2, 3 (4 sequences in 2 microbatches)\n",
        "the data are not continued\n"}) {
    EXPECT_TRUE(contains(before, part)) << part << " in " << result.out;
  }
}

TEST(Resume, TheSameJobGoesOnWithoutFurtherWords) {
  const WorkFolder folder;
  ASSERT_EQ(run_hetermoe(short_train(folder, {"--train.steps", "2"})).code, 0);
  const ProgramResult result =
      run_hetermoe(short_train(folder, {"--train.steps", "2", "--train.log_every", "3"}));
  EXPECT_FALSE(contains(result.out, "it was")) << result.out;
}

TEST(Resume, OfAFinishedRunLeavesItsResults) {
  const WorkFolder folder;
  ASSERT_EQ(run_hetermoe(short_train(folder)).code, 0);
  const std::string summary = read_text(folder / "run/summary.json"),
                    page = read_text(folder / "run/report.html");
  ASSERT_TRUE(contains(summary, "\"executed\""));
  const ProgramResult again = run_hetermoe(short_train(folder));
  EXPECT_TRUE(contains(again.out, "nothing left to do")) << again.out;
  EXPECT_EQ(read_text(folder / "run/summary.json"), summary);
  EXPECT_EQ(read_text(folder / "run/report.html"), page);
}

TEST(Resume, WithEveryCheckpointDamagedTheRunStopsUnlessToldOtherwise) {
  const WorkFolder folder;
  ASSERT_EQ(run_hetermoe(short_train(folder)).code, 0);
  for (const char* name : {"step-00000002", "step-00000004"})
    damage(folder / (std::string("run/checkpoints/") + name));
  const std::string metrics = read_text(folder / "run/metrics.jsonl");
  const ProgramResult refused = run_hetermoe(short_train(folder));
  EXPECT_EQ(refused.code, 2) << refused.out;
  EXPECT_TRUE(contains(refused.err, "run/checkpoints] has 2 checkpoints, of which none can be read: "))
      << refused.err;
  EXPECT_TRUE(contains(refused.err, "--no-checkpoint.resume")) << refused.err;
  EXPECT_EQ(read_text(folder / "run/metrics.jsonl"), metrics);
  const ProgramResult anew = run_hetermoe(short_train(folder, {"--no-checkpoint.resume"}));
  EXPECT_EQ(anew.code, 0) << anew.err;
  EXPECT_TRUE(contains(anew.out, "2 checkpoints of other runs are now in ")) << anew.out;
}

TEST(OutputFolder, OfALivingRunIsRefusedWithItsOwner) {
  const WorkFolder folder;
  Child first(HM_BINARY_DIR "/hetermoe",
              short_train(folder, {"--train.steps", "100000", "--train.log_every", "1"}));
  wait_for([&] { return first.out(); }, "step 2/");
  for (const std::string command : {"train", "compare"}) {
    std::vector<std::string> words = short_train(folder);
    words[0] = command;
    const ProgramResult second = run_hetermoe(words);
    EXPECT_EQ(second.code, 2) << second.out;
    EXPECT_TRUE(contains(second.err, "[output] " + (folder / "run") + " is in use by process "))
        << second.err;
  }
  first.signal(SIGKILL);
  EXPECT_EQ(first.wait().code, 128 + SIGKILL);
  const ProgramResult third = run_hetermoe(short_train(folder, {"--no-checkpoint.resume"}));
  EXPECT_EQ(third.code, 0) << third.err;
  EXPECT_TRUE(contains(third.out, "was left locked by process ")) << third.out;
  EXPECT_FALSE(std::filesystem::exists(folder / "run/.lock"));
}

TEST(OutputFolder, TwoRunsDoNotShareTheFolderOfTheirWeights) {
  const WorkFolder folder;
  const std::vector<std::string> saves = {"--train.save_hf", folder / "weights",  "--train.steps",
                                          "100000",          "--train.log_every", "1"};
  Child first(HM_BINARY_DIR "/hetermoe", short_train(folder, saves));
  wait_for([&] { return first.out(); }, "step 2/");
  const ProgramResult second = run_hetermoe(
      short_train(folder, {"--train.save_hf", folder / "weights", "--output", folder / "other"}));
  EXPECT_EQ(second.code, 2) << second.out;
  EXPECT_TRUE(contains(second.err, "[train.save_hf] " + (folder / "weights") + " is in use by process "))
      << second.err;
  first.signal(SIGKILL);
  first.wait();
}

TEST(Interrupted, ARunEndsWithTheCodeOfItsSignalAndLaunchPassesItOn) {
  std::signal(SIGHUP, SIG_DFL);  // these tests may run under nohup
  for (const auto& [signal, name] : std::vector<std::pair<int, std::string>>{
           {SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}, {SIGUSR1, "SIGUSR1"}}) {
    for (const bool launched : {false, true}) {
      if (launched && signal == SIGUSR1) continue;  // one of the new ones is enough
      const WorkFolder folder;
      std::vector<std::string> words =
          short_train(folder, {"--train.steps", "100000", "--train.log_every", "1"});
      if (launched)
        words.insert(words.begin(), {"launch", "--restarts", "3", "--", HM_BINARY_DIR "/hetermoe"});
      Child run(HM_BINARY_DIR "/hetermoe", words);
      wait_for([&] { return run.out(); }, "step 2/");
      run.signal(signal);
      const ProgramResult result = run.wait();
      EXPECT_EQ(result.code, 128 + signal) << result.err;
      EXPECT_TRUE(contains(result.err, "interrupted by " + name + " after step ")) << result.err;
      EXPECT_TRUE(contains(result.err, "; the same command goes on from there: ")) << result.err;
      EXPECT_TRUE(contains(result.err, fmt::format("exit code {}\n", 128 + signal))) << result.err;
      EXPECT_FALSE(contains(result.err, "restart")) << result.err;
      EXPECT_TRUE(std::filesystem::exists(folder / "run/report.html"));
    }
  }
}

TEST(Interrupted, NohupKeepsARunFromEndingWithItsTerminal) {
  const WorkFolder folder;
  std::vector<std::string> words = short_train(folder, {"--train.steps", "300", "--train.log_every", "1"});
  words.insert(words.begin(), {"nohup", HM_BINARY_DIR "/hetermoe"});
  Child run("/usr/bin/env", words);
  wait_for([&] { return run.out(); }, "step 2/");
  run.signal(SIGHUP);
  wait_for([&] { return run.out(); }, "step 20/");
}

TEST(Files, ALimitOfTheirSizeIsToldInASentence) {
  const WorkFolder folder;
  const ProgramResult result =
      Child("/bin/sh", {"-c", "ulimit -f 1; exec \"$@\"", "sh", HM_BINARY_DIR "/hetermoe", "routing", "make",
                        "-o", folder / "made.routes", "--model", "tiny"})
          .wait();
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(contains(result.err, "made.routes] cannot be written: File too large")) << result.err;
}

TEST(Files, TokensThatShrinkUnderARunAreNamed) {
  const WorkFolder folder;
  const std::string text = folder.file("text.txt", std::string(20000, 'x')), tokens = folder / "tokens";
  ASSERT_EQ(run_hetermoe({"data", "--data.paths", text, "--write", tokens}).code, 0);
  Child run(HM_BINARY_DIR "/hetermoe", short_train(folder, {"--train.steps", "100000", "--train.log_every",
                                                            "1", "--data.paths", tokens + ".idx"}));
  wait_for([&] { return run.out(); }, "step 2/");
  std::filesystem::resize_file(tokens + ".bin", 0);
  const ProgramResult result = run.wait();
  EXPECT_EQ(result.code, 1) << result.err;
  EXPECT_TRUE(contains(result.err, "tokens.bin] became shorter while it was read")) << result.err;
}

TEST(Interrupted, CtrlCAtATerminalReachesALaunchedRunOnce) {
  const WorkFolder folder;
  std::vector<std::string> words = short_train(folder, {"--train.steps", "100000", "--train.log_every", "1"});
  words.insert(words.begin(), {HM_BINARY_DIR "/hetermoe", "launch", "--", HM_BINARY_DIR "/hetermoe"});
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  int terminal = -1;
  const pid_t child = ::forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    ::execv(argv[0], argv.data());
    ::_exit(127);
  }
  std::string said;
  char part[4096];
  bool pressed = false;
  for (ssize_t count = 0; (count = ::read(terminal, part, sizeof part)) > 0;) {
    said.append(part, static_cast<std::size_t>(count));
    if (pressed || !contains(said, "step 2/")) continue;
    pressed = true;
    ASSERT_EQ(::write(terminal, "\x03", 1), 1);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ::close(terminal);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 130) << said;
  EXPECT_TRUE(contains(said, "interrupted by SIGINT after step ")) << said;
  EXPECT_TRUE(std::filesystem::exists(folder / "run/report.html"));
}

TEST(Interrupted, ASignalToTheWholeGroupEndsALaunchedRunWithItsResults) {
  for (const std::string times : {"once", "twice"}) {
    const WorkFolder folder;
    std::vector<std::string> words =
        short_train(folder, {"--train.steps", "100000", "--train.log_every", "1"});
    words.insert(words.begin(), {HM_BINARY_DIR "/hetermoe", "launch", "--", HM_BINARY_DIR "/hetermoe"});
    Child run("/usr/bin/setsid", words);
    wait_for([&] { return run.out(); }, "step 2/");
    run.signal_group(SIGINT);
    if (times == "twice") run.signal_group(SIGINT);
    const ProgramResult result = run.wait();
    EXPECT_EQ(result.code, 130) << result.err;
    EXPECT_TRUE(contains(result.err, "interrupted by SIGINT after step ")) << result.err;
    EXPECT_TRUE(std::filesystem::exists(folder / "run/report.html"));
  }
}

TEST(Interrupted, ARunEndsWithItsLauncher) {
  const WorkFolder folder;
  std::vector<std::string> words = short_train(folder, {"--train.steps", "100000", "--train.log_every", "1"});
  words.insert(words.begin(), {"launch", "--", HM_BINARY_DIR "/hetermoe"});
  Child run(HM_BINARY_DIR "/hetermoe", words);
  wait_for([&] { return run.out(); }, "step 2/");
  run.signal(SIGKILL);
  run.wait();
  wait_for([&] { return std::filesystem::exists(folder / "run/report.html") ? "ended" : ""; }, "ended");
}

TEST(Interrupted, ALauncherThatEndsWithACodeOfItsOwnDoesNotHideIt) {
  Child run(HM_BINARY_DIR "/hetermoe",
            {"launch", "--", "sh", "-c", "trap 'kill $!; exit 1' TERM; sleep 60 & echo begun; wait"});
  wait_for([&] { return run.out(); }, "begun");
  run.signal(SIGTERM);
  EXPECT_EQ(run.wait().code, 128 + SIGTERM);
}

TEST(Interrupted, ACommandThatSaysSoIsNotStartedAgain) {
  for (const std::string code : {"130", "143"}) {
    const ProgramResult result =
        run_hetermoe({"launch", "--pause", "0", "--json", "--", "sh", "-c", "exit " + code});
    EXPECT_EQ(std::to_string(result.code), code);
    EXPECT_EQ(parse_json(result.out, "output")["restarts"], 0);
  }
}

TEST(LaunchMpirun, OpenMpiMayStartForRootAndWithFewCores) {
  const WorkFolder folder;
  const std::string mpirun = folder.file("mpirun", "#!/bin/sh\nenv | grep -E '^(OMPI|PRTE)_' | sort\n");
  std::filesystem::permissions(mpirun, std::filesystem::perms::owner_all);
  const std::string out = run_hetermoe({"launch", "--", mpirun, "-np", "4", "true"}).out;
  EXPECT_TRUE(contains(out, "OMPI_MCA_rmaps_base_oversubscribe=1\n")) << out;
  EXPECT_EQ(contains(out, "OMPI_ALLOW_RUN_AS_ROOT=1\n"), ::geteuid() == 0) << out;
  // Named hosts have slots, and what the user says stays.
  const std::string hosts = run_hetermoe({"launch", "--", mpirun, "--host", "a:2", "-np", "2", "true"},
                                         {{"OMPI_ALLOW_RUN_AS_ROOT", "0"}})
                                .out;
  EXPECT_FALSE(contains(hosts, "oversubscribe")) << hosts;
  EXPECT_TRUE(contains(hosts, "OMPI_ALLOW_RUN_AS_ROOT=0\n")) << hosts;
}

// ---- where results go ----

TEST(OutputFile, MayBeADeviceAPipeOrALink) {
  const WorkFolder folder;
  const auto plan = [&](const std::string& output) {
    return run_hetermoe(
        {"plan", "--model", "tiny", "--cluster", "demo", "--seq", "64", "--sequences", "8", "-o", output});
  };
  EXPECT_EQ(plan("/dev/null").code, 0);
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  folder.file("target.json", "");
  std::filesystem::create_symlink("target.json", folder / "link.json");
  EXPECT_EQ(plan(folder / "link.json").code, 0);
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link.json"));
  EXPECT_TRUE(read_json(folder / "target.json").contains("groups"));
  const ProgramResult to_stdout = plan("/dev/stdout");
  EXPECT_TRUE(contains(to_stdout.out, "\"groups\"")) << to_stdout.out;
  EXPECT_TRUE(contains(to_stdout.out, "plan: /dev/stdout")) << to_stdout.out;
}

TEST(OutputFile, IsTestedBeforeTheWorkAndAFullDiskIsNoWrongUse) {
  const WorkFolder folder;
  folder.file("file", "");
  const std::string below = folder / "file/x";
  for (const std::vector<std::string>& words : {std::vector<std::string>{"plan", "-o", below},
                                                {"profile", "-o", below},
                                                {"report", "no-such-timeline", "-o", below},
                                                {"simulate", "--model", "tiny", "--output", below},
                                                {"compare", "--model", "tiny", "--output", below},
                                                {"train", "--model", "tiny", "--output", below}}) {
    const ProgramResult result = run_hetermoe(words);
    EXPECT_EQ(result.code, 2) << words[0];
    EXPECT_EQ(result.err, "[" + below + "] cannot be written: " + (folder / "file") +
                              " is no folder. Give a place where this process may write\n")
        << words[0];
    EXPECT_EQ(result.out, "") << words[0];
  }
  const ProgramResult full = run_hetermoe(
      {"plan", "--model", "tiny", "--cluster", "demo", "--seq", "64", "--sequences", "8", "-o", "/dev/full"});
  EXPECT_EQ(full.code, 1);
  EXPECT_EQ(full.err, "[/dev/full] writing stopped: No space left on device\n");
}

// ---- numbers that cannot be ----

// Claim (Flags.*): flags take no number that cannot be meant
TEST(Flags, NumbersOutOfTheirRangeAreRefused) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{"plan", "--tokens", "-1"}, "[--tokens] out of range: got -1, expected >= 1"},
      {{"plan", "--sequences", "0"}, "[--sequences] out of range: got 0, expected >= 1"},
      {{"plan", "--seq", "0"}, "[--seq] out of range: got 0, expected >= 1"},
      {{"plan", "--max-microbatches", "-1"}, "[--max-microbatches] out of range: got -1, expected >= 1"},
      {{"plan", "--max-microbatches", "-0x10"}, "[--max-microbatches] out of range: got -16, expected >= 1"},
      {{"profile", "--budget", "nan"}, "[--budget] out of range: got nan, expected 0 to 3600"},
      {{"profile", "--threads", "0"}, "[--threads] out of range: got 0, expected >= 1"},
      {{"profile", "--threads", "100000"}, "[--threads] got 100000, expected 1 to "},
      {{"profile", "--seq", "64,0"}, "[--seq] out of range: got 0, expected >= 1"},
      {{"doctor", "--cluster", "demo", "--limit", "nan"}, "[--limit] out of range: got nan"},
      {{"verify", "--tolerance", "nan"}, "[--tolerance] out of range: got nan, expected >= 0"},
      {{"verify", "--show", "-1"}, "[--show] out of range: got -1, expected >= 0"},
      {{"verify", "--step", "0"}, "[--step] out of range: got 0, expected >= 1"},
      {{"inspect", "tiny", "--seq", "-1"}, "[--seq] out of range: got -1, expected >= 1"},
      {{"launch", "--restarts", "-1", "--", "true"}, "[--restarts] out of range: got -1, expected >= 0"},
      {{"compare", "--seq", "0"}, "[--seq] out of range: got 0, expected >= 1"}};
  for (const auto& [words, expected] : cases) {
    const ProgramResult result = run_hetermoe(words);
    EXPECT_EQ(result.code, 2) << expected;
    EXPECT_TRUE(result.err.starts_with(expected)) << result.err;
    EXPECT_EQ(result.out, "") << expected;
  }
}

TEST(Flags, MoreThreadsThanTheMachineHasUseForAreRefused) {
  const WorkFolder folder;
  const ProgramResult result = run_hetermoe(short_train(folder, {"--clock.threads", "100000"}));
  EXPECT_EQ(result.code, 2) << result.out;
  EXPECT_TRUE(result.err.starts_with("[clock.threads] got 100000, expected 1 to ")) << result.err;
}

TEST(Threads, APredictionNeedsNoneAndARunThatGetsTooFewSaysSo) {
  const WorkFolder folder;
  const std::string cluster =
      folder.file("big.yaml",
                  "name: big\nnetwork_gbit_s: 100\nnodes:\n  - {name: new, count: 4, devices: [A40 x33]}\n"
                  "  - {name: old, count: 4, devices: [V100 x33]}\n");
  const auto compare = [&](const std::string& how) {
    const std::string words = fmt::format(
        "ulimit -s 8192; ulimit -v 4194304; exec {} compare --model tiny --cluster {} --strategies zebra "
        "--train.sequences "
        "264 "
        "--train.microbatches 1 --train.seq_len 8 --train.steps 1 --data.max_bytes 200000 --output {} {}",
        HM_BINARY_DIR "/hetermoe", cluster, folder / "out", how);
    return Child("/bin/sh", {"-c", words}).wait();
  };
  const ProgramResult predicted = compare("--simulate-only");
  EXPECT_EQ(predicted.code, 0) << predicted.err;
  EXPECT_EQ(predicted.err, "");
  const ProgramResult run = compare("--timed-steps 0");
  EXPECT_EQ(run.code, 1) << run.err;
  EXPECT_TRUE(contains(run.err, "[executor] cannot start thread ")) << run.err;
}

TEST(Flags, CommandsOfOneProcessSaySoToALauncher) {
  const Environment variables = {{"RANK", "1"}, {"WORLD_SIZE", "4"}};
  for (const std::string command : {"compare", "verify", "profile"}) {
    const ProgramResult result = run_hetermoe({command, "--model", "tiny"}, variables);
    EXPECT_EQ(result.code, 2) << command;
    EXPECT_TRUE(result.err.starts_with("[" + command + "] runs in one process, but a launcher started 4 "))
        << result.err;
  }
}

// ---- a plan from elsewhere ----

/// A plan of strategy ep for sequences of 24.
std::string plan_of_ep(const WorkFolder& folder) {
  EXPECT_EQ(
      run_hetermoe({"simulate", "--model", "tiny", "--cluster", "demo", "--strategy", "ep", "--train.seq_len",
                    "24", "--train.sequences", "4", "--train.microbatches", "2", "--output", folder / "ep"})
          .code,
      0);
  return folder / "ep/plan.json";
}

TEST(PlanFile, GivenAsAFlagItSettlesTheShapeOfAStepOverTheJobsFile) {
  const WorkFolder folder;
  const std::string plan = plan_of_ep(folder);
  const std::string job =
      folder.file("job.yaml", "model: tiny\ncluster: demo\ntrain: {seq_len: 16, sequences: 8}\n");
  const ProgramResult verified = run_hetermoe({"verify", job, "--plan.file", plan});
  EXPECT_EQ(verified.code, 0) << verified.err;
  const ProgramResult against = run_hetermoe({"verify", job, "--plan.file", plan, "--train.seq_len", "16"});
  EXPECT_EQ(against.code, 2);
  EXPECT_TRUE(contains(against.err, "[seq_len] got 24, but train.seq_len is 16")) << against.err;
}

TEST(PlanFile, TablesNameThePlanThatRuns) {
  const WorkFolder folder;
  const std::string plan = plan_of_ep(folder);
  const ProgramResult result = run_hetermoe({"train", "--model", "tiny", "--cluster", "demo", "--plan.file",
                                             plan, "--train.steps", "1", "--train.validation_sequences", "0",
                                             "--data.max_bytes", "200000", "--output", folder / "run"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_TRUE(contains(result.out, "\nep  ")) << result.out;
  EXPECT_FALSE(contains(result.out, "zebra")) << result.out;
}

TEST(Words, OneDeviceIsNoPlural) {
  const ProgramResult one = run_hetermoe({"inspect", "--cluster", "one"});
  EXPECT_TRUE(contains(one.out, ": 1 device in 1 node\n")) << one.out;
}

}  // namespace
}  // namespace hetermoe
