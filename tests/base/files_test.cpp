#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "hetermoe/base/json.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

// Reading of whole files. Writing: write_text_test.cpp.
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

TEST(ReadText, AFolderIsNoFile) {
  const WorkFolder folder;
  EXPECT_EQ(error_of<IoError>([&] { read_text(folder.path()); }),
            "[" + folder.path().string() + "] is a folder, expected a file");
}

TEST(ReadText, ANamedPipeIsRefusedInsteadOfWaitedFor) {
  const WorkFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of<IoError>([&] { read_text(folder / "pipe"); }),
            "[" + folder / "pipe" +
                "] is a named pipe, expected a file. Write its text to a file, or name /dev/stdin");
}

TEST(ReadText, APipeThatIsOpenAlreadyIsRead) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  ASSERT_EQ(::write(ends[1], "a: 1", 4), 4);
  ::close(ends[1]);
  EXPECT_EQ(read_text(fmt::format("/dev/fd/{}", ends[0])), "a: 1");
  ::close(ends[0]);
}

TEST(ReadText, ANameThatIsTooLongIsAnError) {
  const std::string name(5000, 'x');
  EXPECT_TRUE(has(error_of<IoError>([&] { read_text(name); }), "cannot read file: File name too long"));
  EXPECT_TRUE(has(error_of<IoError>([&] { write_text(name, ""); }), "File name too long"));
  EXPECT_TRUE(has(error_of<IoError>([&] { check_output_file(name); }), "File name too long"));
}

}  // namespace
}  // namespace hetermoe
