#include "hetermoe/data/token_files.h"

#include <gtest/gtest.h>

#include <cstring>

#include "hetermoe/base/json.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

std::vector<i64> all(const TokenArray& tokens) {
  std::vector<i64> out(static_cast<std::size_t>(tokens.size()));
  tokens.copy(0, tokens.size(), out.data());
  return out;
}

std::string at(const std::string& path) { return fmt::format("[{}] ", path); }

template <class T>
std::string bytes_of_list(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

/// Byte by byte as the format is described, not by our writer: two sequences, [5, 6, 7] and [8], one document
/// each.
std::string index_bytes(char type = 8, std::int32_t first_length = 3) {
  return std::string("MMIDIDX\0\0", 9) + bytes_of_list<u64>({1}) + type + bytes_of_list<u64>({2, 3}) +
         bytes_of_list<std::int32_t>({first_length, 1}) + bytes_of_list<i64>({0, 6}) +
         bytes_of_list<i64>({0, 1, 2});
}

TEST(Megatron, ReadsTheDocumentedFormat) {
  const WorkFolder folder;
  const std::string index = folder.file("x.idx", index_bytes());
  folder.file("x.bin", bytes_of_list<std::uint16_t>({5, 6, 7, 8}));
  const DocumentTokens read = read_megatron(index);
  EXPECT_EQ(all(read.tokens), (std::vector<i64>{5, 6, 7, 8}));
  EXPECT_EQ(read.starts, (std::vector<i64>{0, 3}));
  // With the optional modes of the sequences behind it.
  EXPECT_EQ(parse_megatron_index(index_bytes() + std::string(2, '\0'), 8, "x").num_tokens, 4);
}

TEST(Megatron, WhatIsWrittenIsTheDocumentedFormat) {
  const WorkFolder folder;
  MegatronWriter writer(folder / "w", 65499);
  writer.add(std::vector<i64>{5, 6, 7});
  writer.add(std::vector<i64>{8});
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"w.bin.part"}));
  writer.finish();
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"w.bin", "w.idx"}));
  EXPECT_EQ(read_text(folder / "w.idx"), index_bytes());
  EXPECT_EQ(read_text(folder / "w.bin"), bytes_of_list<std::uint16_t>({5, 6, 7, 8}));
}

TEST(Megatron, LargeVocabulariesTakeFourBytesAndEmptyDocumentsAreCounted) {
  const WorkFolder folder;
  MegatronWriter writer(folder / "w", 65500);
  for (const std::vector<i64>& document : std::vector<std::vector<i64>>{{}, {1, 70000}, {}, {2}, {}})
    writer.add(document);
  writer.finish();
  const DocumentTokens read = read_megatron(folder / "w.idx");
  EXPECT_EQ(read.tokens.type(), TokenType::kI32);
  EXPECT_EQ(all(read.tokens), (std::vector<i64>{1, 70000, 2}));
  EXPECT_EQ(read.starts, (std::vector<i64>{0, 2}));
  EXPECT_EQ(read.num_empty, 3);
}

TEST(Megatron, AWriterThatDoesNotFinishLeavesNothing) {
  const WorkFolder folder;
  {
    MegatronWriter writer(folder / "w", 256);
    writer.add(std::vector<i64>{1});
    EXPECT_EQ(error_of<InputError>([&] { writer.add(std::vector<i64>{65536}); }),
              at(folder / "w") + "got token 65536, expected 0 to 65535");
  }
  EXPECT_TRUE(folder.contents().empty());
}

TEST(Megatron, DamagedIndexesAreRefusedInOneSentence) {
  const auto refused = [](const std::string& bytes, i64 bin_bytes = 8) {
    return error_of<InputError>([&] { parse_megatron_index(bytes, bin_bytes, "x.idx"); });
  };
  const std::string good = index_bytes();
  EXPECT_EQ(refused(good), "no error");
  EXPECT_EQ(refused("MMID"), "[x.idx] is no index of Megatron-LM: it does not begin with MMIDIDX");
  for (std::size_t size = 34; size < good.size(); ++size)
    EXPECT_NE(refused(good.substr(0, size)).find("is cut: got "), std::string::npos) << size;
  EXPECT_EQ(refused(good + "x"), "[x.idx] got 83 bytes, expected 82 for 2 sequences and 3 document ends");
  EXPECT_EQ(refused(index_bytes(7)), "[x.idx] got token type 7, expected 1, 2, 3, 4, 5 or 8: an integer");
  EXPECT_EQ(refused(good, 10), "[x.idx] names 4 tokens of 2 bytes, but its .bin has 10 bytes, expected 8");
  EXPECT_EQ(refused(index_bytes(8, 2)),
            "[x.idx] sequence 1 begins at byte 6 of the .bin, expected 4: sequences one after another");
  EXPECT_EQ(refused(index_bytes(8, -1)), "[x.idx] sequence 0 has a length of -1 tokens");
  std::string other = good;
  other[9] = 2;
  EXPECT_EQ(refused(other), "[x.idx] got version 2, expected 1");
  other = good;
  other[58 + 16] = 1;  // the last document ends with the first
  EXPECT_EQ(refused(other),
            "[x.idx] the document list ends at sequence 1, expected 2: all are in a document");
  other[58 + 8] = 9;
  EXPECT_EQ(refused(other), "[x.idx] entry 1 of the document list is sequence 9, expected 0 to 2");
}

std::string llmc_bytes(std::int32_t magic, std::int32_t version, std::int32_t count,
                       const std::string& tokens) {
  std::vector<std::int32_t> head(256);
  head[0] = magic, head[1] = version, head[2] = count;
  return bytes_of_list(head) + tokens;
}

TEST(Llmc, ReadsBothWidthsAndDocumentsByTheirFirstToken) {
  const WorkFolder folder;
  const std::string narrow = folder.file(
      "a.bin", llmc_bytes(20240520, 1, 5, bytes_of_list<std::uint16_t>({50256, 1, 50256, 2, 65535})));
  EXPECT_EQ(all(read_llmc(narrow, {}).tokens), (std::vector<i64>{50256, 1, 50256, 2, 65535}));
  EXPECT_EQ(read_llmc(narrow, {}).starts, (std::vector<i64>{0}));
  EXPECT_EQ(read_llmc(narrow, 50256).starts, (std::vector<i64>{0, 2}));
  const std::string wide =
      folder.file("b.bin", llmc_bytes(20240801, 7, 2, bytes_of_list<std::uint32_t>({128000, 3})));
  EXPECT_EQ(all(read_llmc(wide, {}).tokens), (std::vector<i64>{128000, 3}));
  EXPECT_EQ(
      error_of<InputError>([&] { read_llmc(folder.file("c.bin", llmc_bytes(20240520, 1, 3, "abcd")), {}); }),
      at(folder / "c.bin") + "names 3 tokens, but has 1028 bytes, expected 1030");
  EXPECT_EQ(
      error_of<InputError>([&] { read_llmc(folder.file("c.bin", llmc_bytes(20240801, 1, 1, "abcd")), {}); }),
      at(folder / "c.bin") + "got version 1 of llm.c's tokens, expected 7");
}

}  // namespace
}  // namespace hetermoe
