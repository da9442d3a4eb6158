#include "hetermoe/data/lines_file.h"

#include <gtest/gtest.h>
#include <zlib.h>

#include <random>

#include "hetermoe/data/dataset.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

void pack(const std::string& path, const std::string& text, const char* mode = "wb") {
  const gzFile file = gzopen(path.c_str(), mode);
  gzwrite(file, text.data(), static_cast<unsigned>(text.size()));
  gzclose(file);
}

std::string random_lines(std::mt19937_64& random) {
  std::string out;
  for (u64 i = random() % 40; i > 0; --i)
    out += Json{{"text", std::string(random() % 50, static_cast<char>('a' + random() % 26))}}.dump() + "\n";
  return out + "{\"text\": \"end\"}\n";
}

Source read_source(const std::string& path, std::optional<i64> max_bytes = {}) {
  DataOptions options;
  options.paths = {path};
  options.validation_share = 0;
  options.max_bytes = max_bytes;
  return load_dataset(options, 1).sources.at(0);
}

TEST(LinesFile, OfGzipHasTheTokensOfTheFileThatWasPacked) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 30; ++i) {
    const WorkFolder folder;
    const std::string first = random_lines(random), second = random_lines(random);
    const std::string plain = folder.file("a.jsonl", first + second), packed = folder / "b.jsonl.gz";
    pack(packed, first);
    pack(packed, second, "ab");  // gzip files one after another are one
    EXPECT_EQ(LinesFile(packed).bytes(), first + second);
    const Source expected = read_source(plain), got = read_source(packed);
    EXPECT_EQ(got.all.checksum(), expected.all.checksum());
    EXPECT_EQ(got.all.num_documents(), expected.all.num_documents());
    EXPECT_EQ(got.bytes_read, expected.bytes_read);
    EXPECT_EQ(got.bytes_there, expected.bytes_there);
  }
}

TEST(LinesFile, SaysHowMuchOfAGzipFileWasLeftOut) {
  const WorkFolder folder;
  std::string text;
  for (int i = 0; i < 100; ++i) text += "{\"text\": \"aaaaaaaaaaaaaaaaaaaa\"}\n";
  pack(folder / "a.jsonl.gz", text);
  const Source source = read_source(folder / "a.jsonl.gz", 100);
  EXPECT_LT(source.bytes_read, source.bytes_there);
  EXPECT_EQ(source.bytes_there, static_cast<i64>(text.size()));
}

TEST(LinesFile, AGzipFileThatIsCutOrDamagedIsRefused) {
  const WorkFolder folder;
  pack(folder / "a.jsonl.gz", "{\"text\": \"aaaa\"}\n");
  const std::string whole = read_text(folder / "a.jsonl.gz");
  const auto refused = [&](const std::string& bytes) {
    const std::string path = folder.file("c.jsonl.gz", bytes);
    return error_of<InputError>([&] { LinesFile file(path); });
  };
  for (std::size_t size = 1; size < whole.size(); ++size)
    EXPECT_NE(refused(whole.substr(0, size)).find("c.jsonl.gz] is no whole gzip file"), std::string::npos)
        << size;
  EXPECT_NE(refused("{\"text\": \"a\"}\n").find("is no whole gzip file"), std::string::npos);
  EXPECT_NE(refused(whole + "x").find("is no whole gzip file"), std::string::npos);
  std::string flipped = whole;
  flipped[flipped.size() - 6] ^= 1;  // of the checksum
  EXPECT_NE(refused(flipped).find("is no whole gzip file"), std::string::npos);
}

}  // namespace
}  // namespace hetermoe
