#include <gtest/gtest.h>

#include <filesystem>

#include "tests/cli/program.h"
#include "tests/weights/folders.h"

// A disk that gets full: a small file system in memory, seen by the command alone.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

struct OnFullDisk {
  ProgramResult result;
  std::string left;  ///< files of the disk at the end, by their paths
};

/// Runs the program with a disk of `kilobytes` at `disk`; OUT in its words is a path on it.
OnFullDisk run_on(const WorkFolder& folder, int kilobytes, const std::vector<std::string>& words) {
  const std::string disk = folder / "disk", list = folder / "left.txt";
  fs::create_directories(disk);
  std::string command = fmt::format("mount -t tmpfs -o size={}k tmpfs '{}' || exit 99; '{}/hetermoe'",
                                    kilobytes, disk, HM_BINARY_DIR);
  for (const std::string& word : words)
    command += fmt::format(" '{}'", word.starts_with("OUT") ? disk + word.substr(3) : word);
  command += fmt::format("; code=$?; (cd '{}' && find . -type f | sort) > '{}'; exit $code", disk, list);
  OnFullDisk out;
  out.result =
      Child("/usr/bin/unshare", {"--user", "--map-root-user", "--mount", "bash", "-c", command}).wait();
  if (fs::exists(list)) out.left = read_text(list);
  return out;
}

class FullDisk : public ::testing::Test {
 protected:
  void SetUp() override {
    const WorkFolder folder;
    const OnFullDisk there = run_on(folder, 64, {"--version"});
    if (there.result.code != 0) GTEST_SKIP() << "no file system can be mounted here: " << there.result.err;
  }
  /// One sentence, a code that is not 0, and nothing there.
  static void expect_nothing_left(const OnFullDisk& there, const std::string& what,
                                  const std::string& part = "has room for 16.0 KiB, expected ") {
    EXPECT_NE(there.result.code, 0) << what;
    EXPECT_NE(there.result.err.find(part), std::string::npos) << what << there.result.err;
    EXPECT_EQ(std::count(there.result.err.begin(), there.result.err.end(), '\n'), 1) << there.result.err;
    EXPECT_EQ(there.left, "") << what;
  }
};

TEST_F(FullDisk, LeavesNoPartOfAFolderOfWeights) {
  const WorkFolder folder;
  const std::string mixtral = parity_folder("mixtral").string();
  expect_nothing_left(run_on(folder, 16, {"convert", mixtral, "OUT/a"}), "convert");
  expect_nothing_left(run_on(folder, 16, {"upcycle", mixtral, "-o", "OUT/a"}), "upcycle");
  const ProgramResult grown =
      run_hetermoe({"upcycle", mixtral, "-o", folder / "wide", "--mode", "wide-k", "--noise", "0"});
  ASSERT_EQ(grown.code, 0) << grown.err;
  expect_nothing_left(
      run_on(folder, 16, {"upcycle", folder / "wide", "-o", "OUT/a", "--factor", "1/2", "--mode", "wide-k"}),
      "shrink");
}

TEST_F(FullDisk, LeavesNoPartOfFilesOfTokens) {
  const WorkFolder folder;
  const std::string text = folder.file("text.txt", std::string(300000, 'x'));
  expect_nothing_left(run_on(folder, 64, {"data", "--data.paths", text, "--write", "OUT/a"}), "data",
                      "No space left on device");
}

TEST_F(FullDisk, RefusesARunWhoseCheckpointsDoNotFit) {
  const WorkFolder folder;
  const OnFullDisk there =
      run_on(folder, 512, train_words(folder, {"--output", "OUT/run", "--checkpoint.async", "false"}));
  EXPECT_NE(there.result.code, 0);
  EXPECT_NE(there.result.err.find("[checkpoint.every] "), std::string::npos) << there.result.err;
  EXPECT_NE(there.result.err.find("/checkpoints has room for "), std::string::npos) << there.result.err;
  EXPECT_EQ(there.left, "");
}

}  // namespace
}  // namespace hetermoe
