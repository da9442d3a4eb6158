#include "hetermoe/train/checkpoint/output_lock.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <optional>
#include <thread>

#include "hetermoe/comm/processes.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

const OutputLockOptions kQuick = {.beat = 0.05, .watch = 0.5, .host = ""};

// Claim (OutputLock.*, OutputFolder.*): one run has an output folder; the lock of a dead one is recognised
TEST(OutputLock, TheOwnerIsNamedAndTheFolderFreeAfterwards) {
  const WorkFolder folder;
  const std::string output = folder / "out";
  {
    const OutputLock lock(output);
    EXPECT_EQ(lock.note(), "");
    EXPECT_EQ(
        error_of<ConfigError>([&] { OutputLock second(output); }),
        fmt::format(
            "[output] {} is in use by process {} on \"{}\". Wait for it to end, or give another --output",
            output, ::getpid(), host_name()));
  }
  EXPECT_TRUE(folder.contents().empty());  // nothing was written
  const OutputLock again(output);
  EXPECT_EQ(again.note(), "");
}

TEST(OutputLock, ResultsThatNoRunLeftAreNotReplaced) {
  const WorkFolder folder;
  const std::string output = folder / "out";
  std::filesystem::create_directory(output);
  std::ofstream(std::filesystem::path(output) / "report.html") << "mine";
  EXPECT_EQ(error_of<ConfigError>([&] { OutputLock lock(output); }),
            "[output] folder " + output +
                " holds a report.html that no run left there (no job.json is beside it): expected another "
                "folder, because a run replaces that file");
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"out", "out/report.html"}));
  std::ofstream(std::filesystem::path(output) / "job.json") << "{}";
  const OutputLock lock(output);
}

TEST(OutputLock, AFolderThatWasMovedOrRemovedIsMissed) {
  const WorkFolder folder;
  const std::string output = folder / "out", other = folder / "other";
  {
    const OutputLock lock(output);
    EXPECT_EQ(lock.lost(), "");
    std::filesystem::rename(output, other);
    const std::string moved =
        output + " was moved to " + std::filesystem::canonical(other).string() +
        " during the run: metrics.jsonl and earlier checkpoints are there. What else the "
        "run has written since is in a new folder " +
        output;
    EXPECT_EQ(lock.lost(), moved);
    const OutputLock another_run(output);
    EXPECT_EQ(lock.lost(), moved);
    EXPECT_EQ(another_run.lost(), "");
  }
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"other", "other/.lock"}));
  const OutputLock lock(output);
  std::filesystem::remove(std::filesystem::path(output) / ".lock");
  EXPECT_EQ(lock.lost(), "");  // the folder is there
  std::filesystem::remove_all(output);
  EXPECT_EQ(lock.lost(),
            output +
                " was removed during the run: metrics.jsonl and earlier checkpoints are lost. What "
                "the run has written since is in a new folder of this name");
  std::filesystem::create_directory(output);
  EXPECT_NE(lock.lost(), "");
}

TEST(OutputLock, ALockOfAnotherRunIsNotRemoved) {
  const WorkFolder folder;
  std::optional<OutputLock> first(std::in_place, folder / "out");
  std::filesystem::rename(folder / "out", folder / "other");
  const OutputLock second(folder / "out");
  first.reset();
  EXPECT_TRUE(std::filesystem::exists(folder / "out/.lock"));
}

TEST(OutputLock, LiesBesideAFolderThatIsReplacedAsAWhole) {
  const WorkFolder folder;
  const OutputLockOptions options{.host = "", .key = "train.save_hf", .beside = true};
  {
    const OutputLock lock(folder / "hf", options);
    EXPECT_EQ(folder.contents(), std::vector<std::string>{".hf.lock"});
    EXPECT_EQ(error_of<ConfigError>([&] { OutputLock second(folder / "hf", options); }),
              fmt::format("[train.save_hf] {} is in use by process {} on \"{}\". Wait for it to end, or give "
                          "another --train.save_hf",
                          folder / "hf", ::getpid(), host_name()));
    const OutputLock other(folder / "other", options), output(folder / "hf");
  }
  EXPECT_TRUE(folder.contents().empty());
}

TEST(OutputLock, WhatAKilledProcessLeftIsTakenOverWithAWord) {
  const WorkFolder folder;
  const pid_t child = ::fork();
  if (child == 0) {
    const OutputLock lock(folder.path());
    ::_exit(0);  // as if killed: nothing is tidied
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  ASSERT_EQ(folder.contents(), std::vector<std::string>{".lock"});
  const OutputLock lock(folder.path());
  EXPECT_EQ(lock.note(), fmt::format("{} was left locked by process {} on \"{}\", which is gone",
                                     folder.path().string(), child, host_name()));
}

/// A lock of another machine, on a file system that does not tell machines of each other's locks.
std::string foreign_lock(const WorkFolder& folder) {
  return folder.file(".lock", "{\"host\":\"far\",\"process\":7}\n");
}

TEST(OutputLock, AnotherMachinesLockIsStaleWhenItGrowsNoMore) {
  const WorkFolder folder;
  foreign_lock(folder);
  const OutputLock lock(folder.path(), kQuick);
  EXPECT_NE(lock.note().find("was left locked by process 7 on \"far\", which is gone"), std::string::npos)
      << lock.note();
}

TEST(OutputLock, AnotherMachinesLockThatGrowsIsRespected) {
  const WorkFolder folder;
  const std::string path = foreign_lock(folder);
  std::jthread far([&](const std::stop_token& stop) {
    while (!stop.stop_requested()) {
      std::ofstream(path, std::ios::app) << '.';
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  });
  OutputLockOptions patient = kQuick;
  patient.watch = 30;  // it ends with the first growth
  const std::string error = error_of<ConfigError>([&] { OutputLock lock(folder.path(), patient); });
  EXPECT_NE(error.find("is in use by process 7 on \"far\""), std::string::npos) << error;
}

TEST(OutputLock, AFolderThatCannotBeIsAnErrorOfItsPlace) {
  const WorkFolder folder;
  const std::string file = folder.file("file", "");
  EXPECT_NE(error_of<IoError>([&] { OutputLock lock(file); }).find("is no folder"), std::string::npos);
}

}  // namespace
}  // namespace hetermoe
