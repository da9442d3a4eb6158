#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

// Claim (WriteText.*, OutputPlace.*, OutputFile.*): results go where their path points, which is tested
// before the work
TEST(WriteText, ReplacesAFileAndMakesFolders) {
  const WorkFolder folder;
  write_text(folder / "a/b.txt", "old");
  write_text(folder / "a/b.txt", "new");
  EXPECT_EQ(read_text(folder / "a/b.txt"), "new");
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"a", "a/b.txt"}));
}

TEST(WriteText, WritesBehindLinksAndLeavesThem) {
  const WorkFolder folder;
  fs::create_directory(folder / "far");
  folder.file("far/target", "old");
  fs::create_symlink("far/target", folder / "link");
  fs::create_symlink("link", folder / "link_to_link");
  write_text(folder / "link_to_link", "new");
  EXPECT_TRUE(fs::is_symlink(folder / "link_to_link"));
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(folder / "far/target"), "new");
  fs::create_symlink("far/not_yet", folder / "dangling");
  write_text(folder / "dangling", "made");
  EXPECT_TRUE(fs::is_symlink(folder / "dangling"));
  EXPECT_EQ(read_text(folder / "far/not_yet"), "made");
}

TEST(WriteText, LinksInACircleAreAnError) {
  const WorkFolder folder;
  fs::create_symlink("b", folder / "a");
  fs::create_symlink("a", folder / "b");
  EXPECT_THROW(write_text(folder / "a", "x"), IoError);
  EXPECT_THROW(check_output_file(folder / "a"), IoError);
}

TEST(WriteText, APipeStaysAPipe) {
  const WorkFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const int reader = ::open(pipe.c_str(), O_RDONLY | O_NONBLOCK);
  check_output_file(pipe);
  write_text(pipe, "through");
  char got[16] = {};
  EXPECT_EQ(::read(reader, got, sizeof got), 7);
  EXPECT_STREQ(got, "through");
  ::close(reader);
  EXPECT_TRUE(fs::is_fifo(pipe));
}

TEST(WriteText, ADeviceStaysADevice) {
  check_output_file("/dev/null");
  write_text("/dev/null", "gone");
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
}

TEST(WriteText, AnOpenFileOfThisProcessTakesTheText) {
  const WorkFolder folder;
  const std::string path = folder.file("open", "");
  const int file = ::open(path.c_str(), O_WRONLY);
  ASSERT_EQ(::write(file, "before ", 7), 7);
  write_text(fmt::format("/dev/fd/{}", file), "after");
  ::close(file);
  EXPECT_EQ(read_text(path), "before after");
}

TEST(WriteText, AFullDiskIsToldApartFromAWrongPlace) {
  const std::string full = error_of<WriteError>([] { write_text("/dev/full", "x"); });
  EXPECT_EQ(full, "[/dev/full] writing stopped: No space left on device");
  const WorkFolder folder;
  folder.file("file", "");
  const std::string below = error_of<IoError>([&] { write_text(folder / "file/x", "x"); });
  EXPECT_NE(below.find("Not a directory"), std::string::npos) << below;
}

TEST(OutputPlace, IsTestedWithoutATrace) {
  const WorkFolder folder;
  folder.file("file", "kept");
  check_output_file(folder / "file");
  check_output_file(folder / "new");
  check_output_file(folder / "new/folder/x");
  check_output_folder(folder / "new/folder");
  check_output_folder(folder.path());
  EXPECT_EQ(folder.contents(), std::vector<std::string>{"file"});
  EXPECT_EQ(read_text(folder / "file"), "kept");
}

TEST(OutputPlace, ThatCannotBeIsNamed) {
  const WorkFolder folder;
  folder.file("file", "");
  const auto file = [](const std::string& path) {
    return error_of<IoError>([&] { check_output_file(path); });
  };
  EXPECT_EQ(file(folder.path()), "[" + folder.path().string() + "] is a folder, expected the name of a file");
  EXPECT_NE(file(folder / "file/x").find("/file is no folder"), std::string::npos) << file(folder / "file/x");
  EXPECT_NE(file(folder / std::string(5000, 'x')).find("File name too long"), std::string::npos);
  const std::string wrong = error_of<IoError>([&] { check_output_folder(folder / "file"); });
  EXPECT_NE(wrong.find("/file is no folder"), std::string::npos) << wrong;
}

}  // namespace
}  // namespace hetermoe
