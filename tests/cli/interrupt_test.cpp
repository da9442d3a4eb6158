#include <gtest/gtest.h>

#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "tests/cli/program.h"

// Runs that are interrupted before their first step. Those of later are in runs_test.cpp.
namespace hetermoe {
namespace {

bool catches(pid_t process, int signal) {
  const std::string status = read_text(fmt::format("/proc/{}/status", process));
  const std::string mask = status.substr(status.find("SigCgt:") + 8, 16);
  return (std::stoull(mask, nullptr, 16) >> (signal - 1) & 1) != 0;
}

// Claim (Interrupted.*): a run that was ended says so by its exit code, which `launch` passes on
TEST(Interrupted, CtrlCWhileTheJobIsReadIsToldInALine) {
  const WorkFolder folder;
  const std::string pipe = folder / "job";  // never has a word
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string command : {"train", "compare"}) {
    Child run("/bin/sh", {"-c", "exec \"$@\" 0<>" + pipe, "sh", hetermoe_path(), command, "/dev/stdin"});
    for (int i = 0; i < 3000 && !catches(run.id(), SIGUSR1); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    ASSERT_TRUE(catches(run.id(), SIGINT)) << command;
    run.signal(SIGINT);
    const ProgramResult result = run.wait();
    EXPECT_EQ(result.err, "interrupted by SIGINT before the first step\n");
    EXPECT_EQ(result.code, 128 + SIGINT);
  }
}

}  // namespace
}  // namespace hetermoe
