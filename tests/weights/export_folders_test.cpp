#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <set>

#include "hetermoe/weights/hf_writer.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

// Models of earlier steps that lie in the folder of the finished one.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

void write(const fs::path& target, double value) {
  check_hf_target(target, "");
  write_hf_folder(target, {{{"x", at::kFloat, {2}}, [value] { return at::full({2}, value, at::kFloat); }}},
                  {.config = Json::object()});
}

double value_in(const fs::path& folder) {
  return SafetensorsReader(folder / "model.safetensors").read("x")[0].item<double>();
}

std::set<std::string> folders_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_directory()) names.insert(entry.path().filename().string());
  }
  return names;
}

TEST(ExportFolders, StayWhereTheFinishedModelIsWritten) {
  const WorkFolder out;
  const fs::path target = out / "hf";
  for (const i64 steps : {2, 4}) write(export_folder_of(target, steps), static_cast<double>(steps));
  write(target, 5);
  write(export_folder_of(target, 4), 40);
  write(target, 6);
  EXPECT_EQ(folders_in(target), (std::set<std::string>{"checkpoint-2", "checkpoint-4"}));
  EXPECT_EQ(value_in(target), 6);
  EXPECT_EQ(value_in(target / "checkpoint-2"), 2);
  EXPECT_EQ(value_in(target / "checkpoint-4"), 40);
}

TEST(ExportFolders, AProgramThatWasEndedLosesNone) {
  const WorkFolder out;
  const fs::path target = out / "hf";
  write(export_folder_of(target, 2), 2);
  write(target, 5);
  // Between the two renames by which a folder takes the place of another; and while one was written.
  fs::rename(target, out / ".hf.old");
  out.file("hf/.checkpoint-4.unfinished/rank-00000", "half");
  write(target, 6);
  EXPECT_EQ(folders_in(target), std::set<std::string>{"checkpoint-2"});
  EXPECT_EQ(value_in(target / "checkpoint-2"), 2);
  EXPECT_FALSE(fs::exists(out / ".hf.old"));
}

TEST(ExportFolders, WhatSomebodyElsePutThereIsNotLost) {
  const WorkFolder out;
  write(out / "hf", 5);
  out.file("hf/checkpoint-7/mine.txt", "x");
  EXPECT_NE(error_of<ConfigError>([&] { write(out / "hf", 6); }).find("holds checkpoint-7"),
            std::string::npos);
  EXPECT_EQ(value_in(out / "hf"), 5);
}

TEST(HfTarget, BehindALinkIsWhereTheLinkLeads) {
  const WorkFolder out;
  fs::create_directories(out / "big/m");
  fs::create_directory_symlink(out / "big/m", out / "link");
  write(folder_path(out / "link/"), 5);
  write(folder_path(out / "link"), 6);
  EXPECT_TRUE(fs::is_symlink(out / "link"));
  EXPECT_EQ(value_in(out / "big/m"), 6);
  fs::create_directory_symlink(out / "nowhere", out / "broken");
  EXPECT_EQ(error_of<ConfigError>([&] { write(folder_path(out / "broken"), 5); }),
            "[" + out / "broken" + "] is a link to " + out / "nowhere" +
                ", expected a folder that is there, or a new one");
}

TEST(HfTarget, AFolderThatIsTriedIsPutBack) {
  const WorkFolder out;
  write(out / "hf", 5);
  check_hf_target(out / "hf", "");
  EXPECT_EQ(value_in(out / "hf"), 5);
  fs::rename(out / "hf", out / ".hf.moved");  // the program was ended meanwhile
  check_hf_target(out / "hf", "");
  EXPECT_EQ(value_in(out / "hf"), 5);
  EXPECT_FALSE(fs::exists(out / ".hf.moved"));
}

/// In a process of its own, which may mount where this one may.
int error_at_a_mount_point(const fs::path& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::unshare(CLONE_NEWNS) != 0 || ::mount("", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        ::mount(folder.c_str(), folder.c_str(), nullptr, MS_BIND, nullptr) != 0)
      ::_exit(77);
    const std::string error = error_of<ConfigError>([&] { check_hf_target(folder, ""); });
    ::_exit(error.find("If it is a mount point, name a folder in it, such as " + folder.string() +
                       "/model") == std::string::npos
                ? 1
                : 0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WEXITSTATUS(status);
}

TEST(HfTarget, AMountPointIsRefusedBeforeTheWork) {
  const WorkFolder out;
  fs::create_directories(out / "volume");
  const int code = error_at_a_mount_point(out / "volume");
  if (code == 77) GTEST_SKIP() << "this user may not mount";
  EXPECT_EQ(code, 0);
}

}  // namespace
}  // namespace hetermoe
