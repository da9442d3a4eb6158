#include "hetermoe/weights/safetensors.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

TEST(Safetensors, ShapesThatNoTensorHasAreErrors) {
  const WorkFolder folder;
  const auto error_with = [&](const std::string& shape, const std::string& offsets) {
    const std::string header =
        fmt::format(R"({{"w":{{"dtype":"F32","shape":{},"data_offsets":{}}}}})", shape, offsets);
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    const std::string path = folder.file("x", length + header + std::string(8, '\1'));
    return error_of<IoError>([&] { SafetensorsReader(path).read("w"); });
  };
  EXPECT_EQ(error_with("[2]", "[0,8]"), "no error");
  for (const char* shape :
       {"[4294967296,4294967296]", "[0,9223372036854775807,2]", "[-1]", "[1.5]", "2", "[\"a\"]"})
    EXPECT_NE(error_with(shape, "[0,8]"), "no error") << shape;
  for (const char* offsets :
       {"[0,9223372036854775807]", "[-8,0]", "[9223372036854775800,9223372036854775807]", "[0]"})
    EXPECT_NE(error_with("[2]", offsets), "no error") << offsets;
}

TEST(Safetensors, HeadersOfAnotherFormNameTensorAndPart) {
  const WorkFolder folder;
  const auto error_of_header = [&](const std::string& header) {
    std::string length(8, '\0');
    length[0] = static_cast<char>(header.size());
    const std::string path = folder.file("x", length + header + std::string(8, '\1'));
    const std::string error = error_of<IoError>([&] { SafetensorsReader{path}; });
    EXPECT_EQ(error.find("json.exception"), std::string::npos) << error;
    const std::string begin = "[" + path + "] no safetensors header: ";
    EXPECT_EQ(error.substr(0, begin.size()), begin);
    return error.substr(std::min(begin.size(), error.size()));
  };
  const std::string expected = ", expected an object with dtype, shape and data_offsets";
  EXPECT_EQ(error_of_header("[]"), "[header] got array [], expected an object");
  EXPECT_EQ(error_of_header(R"({"w": 3})"), "[w] has no dtype: got integer 3" + expected);
  EXPECT_EQ(error_of_header(R"({"w": {"shape": [2], "data_offsets": [0, 8]}})").substr(0, 16),
            "[w] has no dtype");
  EXPECT_EQ(error_of_header(R"({"w": {"dtype": "F32", "data_offsets": [0, 8]}})").substr(0, 16),
            "[w] has no shape");
  EXPECT_EQ(error_of_header(R"({"w": {"dtype": "F32", "shape": [2]}})"),
            R"([w] has no data_offsets: got object {"dtype":"F32","shape":[2]})" + expected);
  EXPECT_EQ(error_of_header(R"({"w": {"dtype": 1, "shape": [2], "data_offsets": [0, 8]}})"),
            "[w dtype] got integer 1, expected a text");
  error_of_header(R"({"w": {"dtype": "F32", "shape": {}, "data_offsets": [0, 8]}})");
  error_of_header(R"({"w": {"dtype": "F32", "shape": ["a"], "data_offsets": [0, 8]}})");
  for (const char* offsets : {"8", "[0]", "[0, 8, 8]", "{}", "[0, \"a\"]", "null", "[0, 1e999]"})
    error_of_header(fmt::format(R"({{"w": {{"dtype": "F32", "shape": [2], "data_offsets": {}}}}})", offsets));
  const std::string tensor = R"("w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})";
  EXPECT_EQ(error_of_header(R"({"__metadata__": 1, )" + tensor),
            "[__metadata__] got integer 1, expected an object");
  EXPECT_EQ(error_of_header(R"({"__metadata__": {"checksum w": 1}, )" + tensor),
            "[checksum w] got integer 1, expected a text");
}

TEST(Safetensors, APipeIsRefusedAtOnce) {
  const WorkFolder folder;
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(error_of<IoError>([&] { SafetensorsReader{folder / "pipe"}; }),
            "[" + folder / "pipe" + "] is no regular file, expected safetensors");
}

TEST(Safetensors, DevicesPipesAndLinksStay) {
  const WorkFolder folder;
  const std::vector<NamedTensor> tensors = {{"a", at::ones({3})}};
  fs::create_symlink("/dev/null", folder / "null");
  fs::create_symlink("/dev/full", folder / "full");
  ASSERT_EQ(::mkfifo((folder / "pipe").c_str(), 0600), 0);
  const int reader = ::open((folder / "pipe").c_str(), O_RDONLY | O_NONBLOCK);
  for (const char* name : {"null", "pipe"})
    EXPECT_EQ(error_of([&] { write_safetensors(folder / name, tensors); }), "no error") << name;
  EXPECT_EQ(error_of<WriteError>([&] { write_safetensors(folder / "full", tensors); }),
            "[" + folder / "full" + "] cannot write: No space left on device");
  for (const char* name : {"null", "full"}) EXPECT_TRUE(fs::is_symlink(folder / name)) << name;
  EXPECT_TRUE(fs::is_character_file("/dev/null"));
  EXPECT_TRUE(fs::is_fifo(folder / "pipe"));
  ::close(reader);
}

}  // namespace
}  // namespace hetermoe
