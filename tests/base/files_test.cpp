#include <gtest/gtest.h>

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

TEST(ReadText, ANameThatIsTooLongIsAnError) {
  const std::string name(5000, 'x');
  EXPECT_TRUE(has(error_of<IoError>([&] { read_text(name); }), "cannot read file: File name too long"));
  EXPECT_TRUE(has(error_of<IoError>([&] { write_text(name, ""); }), "File name too long"));
  EXPECT_TRUE(has(error_of<IoError>([&] { check_output_file(name); }), "File name too long"));
}

}  // namespace
}  // namespace hetermoe
