#include <gtest/gtest.h>

#include "tests/cli/program.h"

namespace hetermoe {
namespace {

ProgramResult launch(const std::vector<std::string>& options, const std::string& script) {
  std::vector<std::string> words = {"launch", "--pause", "0", "--json"};
  words.insert(words.end(), options.begin(), options.end());
  words.insert(words.end(), {"--", "sh", "-c", script});
  return run_hetermoe(words);
}

TEST(Launch, StartsAgainUntilTheCommandSucceeds) {
  const WorkFolder folder;
  // Fails twice: each try leaves one more file.
  const std::string script =
      "for n in 1 2; do test -e " + folder / "$n" + " || { touch " + folder / "$n" + "; kill -9 $$; }; done";
  const ProgramResult result = launch({"--restarts", "3"}, script);
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(parse_json(result.out, "output")["restarts"], 2);
  EXPECT_NE(result.err.find("failed with code 137: restart 1 of 3"), std::string::npos) << result.err;
}

TEST(Launch, GivesUpWithTheCodeOfTheCommand) {
  const ProgramResult result = launch({"--restarts", "1"}, "exit 7");
  EXPECT_EQ(result.code, 7);
  EXPECT_EQ(parse_json(result.out, "output")["restarts"], 1);
  EXPECT_NE(result.err.find("no restart is left after 1"), std::string::npos) << result.err;
}

TEST(Launch, WrongInputIsNotTriedAgain) {
  const ProgramResult result = launch({}, "exit 2");
  EXPECT_EQ(result.code, 2);
  EXPECT_EQ(parse_json(result.out, "output")["restarts"], 0);
}

TEST(Launch, PassesTheCommandOnAsItIs) {
  const ProgramResult result = run_hetermoe(
      {"launch", "--", "sh", "-c", "test \"$1\" = --x && test \"$2\" = false", "sh", "--x", "false"});
  EXPECT_EQ(result.code, 0) << result.err;
}

/// Lists in brackets, as job keys take them, are single words, and so is nothing.
TEST(Launch, TakesNoWordApart) {
  const std::vector<std::string> words = {
      "[0,1]", "[[0,1],[2,3]]", R"([{"step": 3, "plan": "p.json"}])", "[x]", "", "--", "--flag", "true"};
  std::vector<std::string> all = {"launch", "--", "printf", "<%s>\n"};
  all.insert(all.end(), words.begin(), words.end());
  const ProgramResult result = run_hetermoe(all);
  EXPECT_EQ(result.code, 0) << result.err;
  std::string expected;
  for (const std::string& word : words) expected += "<" + word + ">\n";
  EXPECT_EQ(result.out, expected);
}

TEST(Launch, ReadsEveryKeyOfAJobThatItMayReplan) {
  const WorkFolder folder;
  const ProgramResult result = run_hetermoe(
      {"launch", "--restarts", "0", "--replan", "--", "true", "hetermoe", "train", "--model", "tiny",
       "--output", folder / "out", "--train.changes", R"([{"step": 3, "plan": "p.json"}])"});
  EXPECT_EQ(result.code, 0) << result.err;
}

TEST(Launch, ATraceCannotGoOnWithFewerProcesses) {
  const WorkFolder folder;
  const ProgramResult result = run_hetermoe(
      {"launch", "--replan", "--", "true", "hetermoe", "train", "--routing.record", folder / "t"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("[--replan] routing.record writes a file for each process"), std::string::npos)
      << result.err;
}

TEST(Launch, NeedsACommand) {
  const ProgramResult result = run_hetermoe({"launch"});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("[launch] no command"), std::string::npos) << result.err;
}

// ---- hostfiles ----

/// A program named mpirun that says how it was called, with what its hostfile has, and then does something.
std::string fake_mpirun(const WorkFolder& folder, const std::string& then) {
  const std::string path = folder.file(
      "mpirun",
      "#!/bin/sh\n[ \"$1\" = --hostfile ] || exit 9\nhosts=$2\nshift 2\necho \"$@\"\ncat \"$hosts\"\n" +
          then);
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

// Claim (LaunchHostfile.*, mpi.replan): a hostfile starts its number of processes on every host; slots of
// ranks that vanished are used no more
TEST(LaunchHostfile, EveryHostGetsItsNumberOfProcesses) {
  const WorkFolder folder;
  const std::string hosts =
      folder.file("hosts", "n1 slots=1 type=A40\n# old\nn2 slots=4 type=V100\nn3 type=V100\n");
  const ProgramResult result = run_hetermoe(
      {"launch", "--hostfile", hosts, "--", fake_mpirun(folder, ""), "--tag-output", "hetermoe", "doctor"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out,
            "--map-by slot -np 6 --tag-output hetermoe doctor\nn1 slots=1\nn2 slots=4\nn3 slots=1\n");
}

TEST(LaunchHostfile, MpirunIsPutInFront) {
  const WorkFolder folder;
  fake_mpirun(folder, "");
  const ProgramResult result =
      run_hetermoe({"launch", "--hostfile", folder.file("hosts", "n1 slots=2\n"), "--", "hetermoe", "doctor"},
                   {{"PATH", folder.path().string() + ":/usr/bin:/bin"}});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "--map-by slot -np 2 hetermoe doctor\nn1 slots=2\n");
}

TEST(LaunchHostfile, TheSlotsOfVanishedRanksAreUsedNoMore) {
  const WorkFolder folder;
  const std::string ranks = folder / "out/ranks";
  // Ranks 1 and 3, of n2 and n3, vanish at the first try.
  std::string script = "mkdir -p " + ranks + "\ntest -e " + (folder / "again") + " && exit 0\ntouch " +
                       (folder / "again") + "\n";
  for (int r = 0; r < 4; ++r) {
    script += fmt::format("printf '{{\"rank\": {}, \"devices\": [{}]}}\\n{}' > {}/rank-0000{}\n", r, r,
                          r % 2 == 0 ? "failed\\n" : "", ranks, r);
  }
  const ProgramResult result =
      run_hetermoe({"launch", "--replan", "--pause", "0", "--hostfile",
                    folder.file("hosts", "n1 slots=1\nn2 slots=2\nn3 slots=1\n"), "--",
                    fake_mpirun(folder, script + "exit 1"), "hetermoe", "train", "--model", "tiny",
                    "--cluster", "demo", "--output", folder / "out"});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_NE(result.out.find("n1 slots=1\nn2 slots=2\nn3 slots=1\n"), std::string::npos) << result.out;
  EXPECT_TRUE(result.out.ends_with("n1 slots=1\nn2 slots=1\n")) << result.out;
  EXPECT_NE(result.out.find("-np 2 "), std::string::npos) << result.out;
  EXPECT_NE(result.err.find("[launch] ranks 1, 3 with devices 1, 3 vanished: planned anew over device"),
            std::string::npos)
      << result.err;
}

TEST(LaunchHostfile, WhatIsWrongIsNamed) {
  const WorkFolder folder;
  const ProgramResult line = run_hetermoe(
      {"launch", "--hostfile", folder.file("hosts", "n1\nn2 slots=x\n"), "--", "hetermoe", "doctor"});
  EXPECT_EQ(line.code, 2);
  EXPECT_NE(line.err.find("hosts:2] slots: got \"x\""), std::string::npos) << line.err;
  const ProgramResult twice = run_hetermoe({"launch", "--hostfile", folder.file("good", "n1 slots=2\n"), "--",
                                            "mpirun", "-np", "4", "hetermoe", "train"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_NE(twice.err.find("[-np] got 4, but the hostfile has 2 slots"), std::string::npos) << twice.err;
  const ProgramResult missing = run_hetermoe({"launch", "--hostfile", folder / "none", "--", "true"});
  EXPECT_EQ(missing.code, 2) << missing.err;
}

// ---- who started this process ----

TEST(Train, OnCpusUnderTorchrunNamesMpirun) {
  const WorkFolder folder;
  const ProgramResult result =
      run_hetermoe({"train", "--model", "tiny", "--output", folder / "out"}, {{"RANK", "1"},
                                                                              {"LOCAL_RANK", "1"},
                                                                              {"WORLD_SIZE", "4"},
                                                                              {"MASTER_ADDR", "localhost"},
                                                                              {"MASTER_PORT", "29500"}});
  EXPECT_EQ(result.code, 2);
  EXPECT_NE(result.err.find("[WORLD_SIZE] torchrun started 4 processes"), std::string::npos) << result.err;
  EXPECT_NE(result.err.find("mpirun -np 4 " + hetermoe_path() + " train"), std::string::npos) << result.err;
  EXPECT_TRUE(folder.contents().empty());
}

}  // namespace
}  // namespace hetermoe
