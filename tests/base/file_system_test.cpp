#include "hetermoe/base/file_system.h"

#include <gtest/gtest.h>

#include "hetermoe/base/json.h"
#include "hetermoe/base/paths.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

TEST(SwapPaths, FoldersGetEachOthersName) {
  const WorkFolder folder;
  folder.file("a/mine", "1");
  folder.file("b/yours", "2");
  if (!swap_paths(folder / "a", folder / "b")) GTEST_SKIP() << "this file system exchanges no names";
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"a", "a/yours", "b", "b/mine"}));
}

TEST(SwapPaths, WhatIsMissingIsNoSwap) {
  const WorkFolder folder;
  folder.file("a/mine", "1");
  EXPECT_FALSE(swap_paths(folder / "a", folder / "b"));
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"a", "a/mine"}));
}

TEST(FindConfig, AFolderOfAKnownNameIsMeantWhereItHoldsAModel) {
  const WorkFolder folder;
  folder.file("o1/notes", "1");
  folder.file("d1/config.json", "{}");
  const fs::path before = fs::current_path();
  fs::current_path(folder.path());
  const fs::path cluster = find_config("o1", "clusters", "yaml"), model = find_config("d1", "models", "json"),
                 folder_by_path = find_config("./o1", "clusters", "yaml");
  fs::current_path(before);
  EXPECT_EQ(cluster.filename(), "o1.yaml");
  EXPECT_EQ(model, "d1");
  EXPECT_EQ(folder_by_path, "./o1") << "who reads it says what is wrong";
}

TEST(FreeSpace, OfAFolderThatIsNotThereYetIsThatOfTheOneAbove) {
  const WorkFolder folder;
  const std::optional<Bytes> here = free_space(folder.path());
  const std::optional<Bytes> below = free_space(folder.path() / "not" / "there");
  ASSERT_TRUE(here && below);
  EXPECT_GT(*here, 0);
  EXPECT_NEAR(*below / *here, 1, 0.5);  // others write to this disk, too
}

TEST(FolderBytes, CountsFilesOfAllFolders) {
  const WorkFolder folder;
  folder.file("a", "123");
  folder.file("b/c/d", "4567");
  EXPECT_EQ(folder_bytes(folder.path()), 7);
  EXPECT_EQ(folder_bytes(folder / "none"), 0);
}

}  // namespace
}  // namespace hetermoe
