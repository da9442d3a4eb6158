#include <gtest/gtest.h>
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "hetermoe/base/json.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

// Reading and writing of whole files.
namespace hetermoe {
namespace {

namespace fs = std::filesystem;

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

TEST(ReadText, AFileThatIsTooLargeNamesItsSizeAndTheLimit) {
  const WorkFolder folder;
  const std::string path = folder.file("x", "12345678");
  EXPECT_EQ(read_text(path, 8), "12345678");
  EXPECT_EQ(error_of<IoError>([&] { read_text(path, 7); }),
            "[" + path + "] is too large for a text file: got 8 bytes, expected at most 7 bytes");
}

TEST(ReadText, AFileWithoutEndIsAnError) {
  EXPECT_EQ(
      error_of<IoError>([] { read_text("/dev/zero", 1 << 20); }),
      "[/dev/zero] is too large for a text file: got no end after them, expected at most 1048576 bytes");
}

TEST(ReadText, ASparseFileOfATerabyteIsNotRead) {
  const WorkFolder folder;
  const std::string path = folder.file("sparse", "a");
  fs::resize_file(path, std::uintmax_t{1} << 40);
  EXPECT_TRUE(has(error_of<IoError>([&] { read_yaml(path); }), "got 1099511627776 bytes"));
  EXPECT_TRUE(has(error_of<IoError>([&] { read_json(path); }), "got 1099511627776 bytes"));
}

TEST(ReadText, ANameThatIsTooLongIsAnError) {
  const std::string name(5000, 'x');
  EXPECT_TRUE(has(error_of<IoError>([&] { read_text(name); }), "cannot read file: File name too long"));
  EXPECT_TRUE(has(error_of<IoError>([&] { write_text(name, ""); }), "File name too long"));
  EXPECT_TRUE(has(error_of<IoError>([&] { check_writable(name); }), "File name too long"));
}

TEST(WriteText, WhatALinkPointsToIsReplacedAndNotTheLink) {
  const WorkFolder folder;
  folder.file("real/a", "old");
  fs::create_symlink("real/a", folder / "link");
  fs::create_symlink("real/new", folder / "dangling");
  write_text(folder / "link", "new");
  write_text(folder / "dangling", "first");
  EXPECT_TRUE(fs::is_symlink(folder / "link"));
  EXPECT_EQ(read_text(folder / "real/a"), "new");
  EXPECT_EQ(read_text(folder / "real/new"), "first");
}

TEST(WriteText, ADeviceOrAPipeIsWrittenToAndStays) {
  const WorkFolder folder;
  const std::string pipe = folder / "pipe";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  std::string got;
  std::thread reader([&] { got = read_text(pipe); });
  write_text(pipe, "through the pipe");
  reader.join();
  EXPECT_EQ(got, "through the pipe");
  EXPECT_EQ(fs::status(pipe).type(), fs::file_type::fifo);
  write_text("/dev/null", "nothing");
  EXPECT_EQ(fs::status("/dev/null").type(), fs::file_type::character);
}

TEST(WriteText, AFullDiskIsAWriteError) {
  EXPECT_EQ(error_of<WriteError>([] { write_text("/dev/full", "x"); }),
            "[/dev/full] writing stopped: No space left on device");
}

TEST(WriteText, AFolderThatCannotBeMadeSaysWhy) {
  const WorkFolder folder;
  const std::string path = folder.file("file", "") + "/below/x";
  const std::string error = error_of<IoError>([&] { write_text(path, "x"); });
  EXPECT_EQ(error, "[" + path + "] cannot create folder " + folder / "file/below" + ": Not a directory");
  EXPECT_TRUE(has(error_of<IoError>([] { write_text("/proc/sys/none/x", "x"); }), "cannot create folder"));
}

TEST(CheckWritable, KnowsBeforehandAndLeavesNothing) {
  const WorkFolder folder;
  const std::string file = folder.file("file", "");
  const auto refused = [](const std::string& path) {
    return error_of<IoError>([&] { check_writable(path); });
  };
  EXPECT_EQ(refused(folder / "a/b/new"), "no error");
  EXPECT_EQ(refused("new"), "no error");
  EXPECT_EQ(refused(file), "no error");
  EXPECT_EQ(refused("/dev/null"), "no error");
  EXPECT_EQ(refused(file + "/x"), "[" + file + "/x] cannot write file: " + file + " is no folder");
  EXPECT_EQ(refused(file + "/x/y"), "[" + file + "/x/y] cannot write file: " + file + " is no folder");
  EXPECT_EQ(refused(folder / "."), "[" + folder / "." + "] is a folder, expected a file to write");
  EXPECT_EQ(refused(""), "[output] the name of the file is empty, expected a path");
  EXPECT_EQ(folder.contents(), std::vector<std::string>{"file"});
}

}  // namespace
}  // namespace hetermoe
