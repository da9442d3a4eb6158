#include "hetermoe/data/dataset.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>

#include "hetermoe/data/source_files.h"
#include "hetermoe/data/token_files.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {
namespace fs = std::filesystem;

std::string string_of(const TokenStream& tokens) {
  std::string out;
  for (const i64 token : tokens.tokens(0, tokens.size())) out.push_back(static_cast<char>(token));
  return out;
}

std::vector<i64> starts_of(const TokenStream& tokens) {
  std::vector<i64> out;
  for (i64 d = 0; d < tokens.num_documents(); ++d) out.push_back(tokens.document(d));
  return out;
}

template <class E>
std::string message_of(const DataOptions& options, i64 seq_len) {
  return error_of<E>([&] { load_dataset(options, seq_len); });
}

/// Of these paths, all for training.
DataOptions training_only(std::vector<std::string> paths) {
  DataOptions options;
  options.paths = std::move(paths);
  options.validation_share = 0;
  return options;
}

std::vector<std::uint8_t> counting_bytes(i64 size) {
  std::vector<std::uint8_t> out;
  for (i64 i = 0; i < size; ++i) out.push_back(static_cast<std::uint8_t>(i % 251));
  return out;
}

TEST(LoadDataset, TakesFoldersInPathOrderAndSplitsAtTheEnd) {
  const WorkFolder folder;
  folder.file("b.txt", "bbbb");
  folder.file("a/z.txt", "zzzz");
  folder.file("a.txt", "aaaa");
  folder.file("c.bin", "cccc");
  DataOptions options;
  options.paths = {folder.path().string()};
  options.extensions = {".txt"};
  options.validation_share = 0.25;
  const Source source = load_dataset(options, 2).sources.at(0);
  EXPECT_EQ(string_of(source.train), "aaaazzzzb");  // "a.txt" < "a/z.txt" < "b.txt" bytewise
  EXPECT_EQ(string_of(source.validation), "bbb");
  EXPECT_EQ(source.num_files, 3);
  EXPECT_EQ(starts_of(source.all), (std::vector<i64>{0, 4, 8}));
  EXPECT_EQ(starts_of(source.validation), (std::vector<i64>{}));  // it begins within a document
}

TEST(LoadDataset, EndingsThatNoFileHasAreNamed) {
  const WorkFolder folder;
  folder.file("b.txt", "bbbb");
  DataOptions options;
  options.paths = {folder.path().string()};
  options.extensions = {".md", ".rst"};
  EXPECT_EQ(error_of<ConfigError>([&] { load_dataset(options, 2); }),
            "[data.extensions] no file below " + folder.path().string() +
                " ends in .md or .rst: expected endings of the files to read there");
}

TEST(LoadDataset, WeightsWithoutPathsAreRefused) {
  DataOptions options;
  options.weights = {1};
  EXPECT_EQ(error_of<ConfigError>([&] { load_dataset(options, 2); }),
            "[data.weights] got 1 weight, expected one for each of 0 paths");
}

TEST(CheckVocabulary, ATokenThatTheModelLacksIsNamed) {
  ModelConfig model;
  model.name = "small";
  const Dataset data = byte_dataset(counting_bytes(100), {120, 120, 120});
  model.vocab = 121;
  EXPECT_EQ(error_of([&] { check_vocabulary(data, model); }), "no error");
  model.vocab = 120;
  EXPECT_EQ(error_of<ConfigError>([&] { check_vocabulary(data, model); }),
            "[model] small has a vocabulary of 120 tokens, but the data have tokens up to 120: expected a "
            "vocab_size of at least 121 (of bytes 256 serves any text), or another data.tokenizer");
}

TEST(LoadDataset, NamedFilesKeepTheirOrderAndTheLimitCutsTheLast) {
  const WorkFolder folder;
  DataOptions options = training_only({folder.file("b", "bbbbbb"), folder.file("a", "aaaaaa")});
  options.max_bytes = 8;
  const Source source = load_dataset(options, 4).sources.at(0);
  EXPECT_EQ(string_of(source.train), "bbbbbbaa");
  EXPECT_EQ(source.validation.size(), 0);
}

TEST(LoadDataset, WhatIsThereIsReadUnlessALimitSaysOtherwise) {
  const WorkFolder folder;
  const std::string text(9 << 20, 'x'), path = folder.file("a.txt", text);
  DataOptions options = training_only({path});
  const Dataset all = load_dataset(options, 4);
  EXPECT_EQ(all.sources.at(0).all.size(), 9 << 20);
  EXPECT_EQ(data_line(all, options), path + " (1 file): 9.4 M tokens, all there are; tokenizer bytes");
  options.max_bytes = 2 << 20;
  options.paths.push_back(folder.file("b.txt", text));
  const Source part = load_dataset(options, 4).sources.at(0);
  EXPECT_EQ(part.bytes_read, 2 << 20);
  EXPECT_EQ(part.bytes_there, 18 << 20);
  EXPECT_NE(data_line(load_dataset(options, 4), options)
                .find("2.1 M tokens, from 2.00 MiB of 18.0 MiB of text: data.max_bytes; tokenizer bytes"),
            std::string::npos)
      << data_line(load_dataset(options, 4), options);
}

TEST(LoadDataset, OfJsonLinesItIsTheLinesThatCount) {
  const WorkFolder folder;
  const std::string line = "{\"text\": \"abc\"}\n";
  DataOptions options = training_only({folder.file("x.jsonl", line + line + line)});
  options.max_bytes = 7;
  const Source source = load_dataset(options, 2).sources.at(0);
  EXPECT_EQ(source.bytes_read, static_cast<i64>(2 * line.size()));
  EXPECT_EQ(source.bytes_there, static_cast<i64>(3 * line.size()));
}

TEST(LoadDataset, BinaryFilesOfAFolderAreSkippedButNamedOnesAreErrors) {
  const WorkFolder folder;
  folder.file("text", "some text");
  const std::string binary = folder.file("binary", std::string("ab\0c", 4));
  DataOptions options = training_only({folder.path().string()});
  const Source source = load_dataset(options, 4).sources.at(0);
  EXPECT_EQ(string_of(source.train), "some text");
  EXPECT_EQ(source.num_files, 1);
  EXPECT_EQ(source.num_skipped, 1);
  EXPECT_EQ(source.bytes_there, 9);
  options.paths = {binary};
  EXPECT_EQ(message_of<IoError>(options, 4),
            "[data.paths] " + binary + " is no text: it has a NUL byte, expected text");
}

TEST(LoadDataset, BinaryFilesAreToldByTheirEndingsWithWhatMakesTextOfThem) {
  const WorkFolder folder;
  const std::string nul = std::string("ab\0c", 4);
  const std::string parquet = folder.file("in/a.parquet", nul), packed = folder.file("x.txt.gz", nul);
  const std::string of_nul = " is no text: it has a NUL byte, expected text. ";
  EXPECT_EQ(message_of<IoError>(training_only({parquet}), 4),
            "[data.paths] " + parquet + of_nul + "tools/parquet_to_jsonl.py makes JSON lines of it");
  EXPECT_EQ(message_of<IoError>(training_only({packed}), 4),
            "[data.paths] " + packed + of_nul +
                "Unpack it by gunzip: of packed files only JSON lines (.jsonl.gz) are read");
  folder.file("in/b.parquet", nul);
  DataOptions options = training_only({folder / "in"});
  const std::string skipped =
      "2 files skipped, which hold NUL bytes: .parquet (tools/parquet_to_jsonl.py makes JSON lines of "
      "Parquet)";
  EXPECT_EQ(message_of<ConfigError>(options, 4),
            "[data.paths] too little text for training: got 0 tokens from 0 files, expected at least 5 "
            "(train.seq_len + 1). Name more text, or lower train.seq_len. " +
                skipped);
  folder.file("in/c.txt", "some text");
  EXPECT_EQ(data_line(load_dataset(options, 4), options),
            (folder / "in") + " (1 file; " + skipped + "): 9 tokens, all there are; tokenizer bytes");
  EXPECT_EQ(skipped_text(7, {"", ".a", ".b", ".c", ".d", ".e", ".f"}),
            "7 files skipped, which hold NUL bytes: no ending, .a, .b, .c, .d, 2 more endings");
  EXPECT_EQ(skipped_text(1, {".png"}), "1 file skipped, which holds NUL bytes: .png");
}

TEST(LoadDataset, WhatCannotBeReadIsNamed) {
  EXPECT_EQ(message_of<IoError>(training_only({"/no/such/text"}), 4),
            "[data.paths] cannot read /no/such/text: no such file or folder");
}

TEST(LoadDataset, TooLittleTextNamesTheNeed) {
  const WorkFolder folder;
  DataOptions options = training_only({folder.file("short", "0123456789")});
  EXPECT_EQ(message_of<ConfigError>(options, 9), "no error");
  EXPECT_EQ(message_of<ConfigError>(options, 10),
            "[data.paths] too little text for training: got 10 tokens from 1 file, expected at least 11 "
            "(train.seq_len + 1). Name more text, or lower train.seq_len");
  options.validation_share = 0.2;
  EXPECT_NE(message_of<ConfigError>(options, 4).find("too little text for validation: got 2 tokens"),
            std::string::npos);
}

TEST(LoadDataset, AFolderWithoutTextIsAnError) {
  const WorkFolder folder;
  EXPECT_NE(
      message_of<ConfigError>(training_only({folder.path().string()}), 4).find("got 0 tokens from 0 files"),
      std::string::npos);
}

TEST(LoadDataset, DefaultIsThePythonLibraryOfThisMachine) {
  if (python_library().empty()) GTEST_SKIP() << "no Python standard library here";
  DataOptions options;
  EXPECT_NE(data_line(load_dataset(options, 128), options).find("from 8.00 MiB of "), std::string::npos);
  options.max_bytes = 200000;
  const Source source = load_dataset(options, 128).sources.at(0);
  EXPECT_EQ(source.train.size() + source.validation.size(), 200000);
  const double entropy = unigram_entropy(source.train);
  EXPECT_GT(entropy, 2.5);  // source code, not noise (5.5) nor padding (0)
  EXPECT_LT(entropy, 4.0);
}

TEST(LoadDataset, EachLineOfJsonIsADocumentWithItsEndToken) {
  const WorkFolder folder;
  DataOptions options =
      training_only({folder.file("x.jsonl", "{\"text\": \"ab\"}\n{\"text\": \"\"}\n{\"text\": \"cde\"}\n")});
  EXPECT_EQ(string_of(load_dataset(options, 2).sources[0].all), "abcde");
  options.end_token = '|';
  const Source source = load_dataset(options, 2).sources[0];
  EXPECT_EQ(string_of(source.all), "ab|cde|");
  EXPECT_EQ(starts_of(source.all), (std::vector<i64>{0, 3}));
  EXPECT_EQ(source.num_empty, 1);
  options.end_token = 300;  // does not fit into a byte
  EXPECT_EQ(load_dataset(options, 2).sources[0].all.tokens(0, 4), (std::vector<i64>{'a', 'b', 300, 'c'}));
  options.end_token.reset();
  options.max_bytes = 4;  // no half documents
  EXPECT_EQ(message_of<ConfigError>(options, 2).find("got 2 tokens") != std::string::npos, true);
}

TEST(LoadDataset, ALineOfJsonWithoutItsFieldIsRefusedWithItsNumber) {
  const WorkFolder folder;
  const auto refused = [&](const std::string& lines) {
    return message_of<InputError>(training_only({folder.file("x.jsonl", lines)}), 2);
  };
  const std::string at = fmt::format("[{} line 2] ", folder / "x.jsonl"), first = "{\"text\": \"abc\"}\n";
  EXPECT_EQ(refused(first + "{\"content\": \"b\", \"id\": 1}\n"),
            at + "has no \"text\" but the keys content, id. Name the key of the text by data.json_field");
  EXPECT_EQ(refused(first + "{\"text\": 7}\n"), at + "\"text\" is integer 7, expected a text");
  EXPECT_EQ(refused(first + "[1]\n").substr(0, at.size() + 4), at + "got ");
  EXPECT_EQ(refused(first + "{\"text\": \"b\"\n"),
            at + "is no JSON in UTF-8, expected an object on each line");
  EXPECT_EQ(refused(first + std::string(1'000'000, '[')), at + "is nested more than 200 levels deep");
}

TEST(LoadDataset, EachObjectOfAnArrayIsADocumentAndOtherJsonIsText) {
  const WorkFolder folder;
  DataOptions options =
      training_only({folder.file("x.json", R"([ {"text": "ab"}, {"text": "cde", "id": [1]} ])")});
  options.end_token = '|';
  EXPECT_EQ(string_of(load_dataset(options, 2).sources[0].all), "ab|cde|");
  options.json_field = "content";
  EXPECT_EQ(message_of<InputError>(options, 2),
            fmt::format("[{} element 1] has no \"content\" but the keys text. Name the key of the text by "
                        "data.json_field",
                        folder / "x.json"));
  for (const char* text : {R"({"text": "ab"})", "[1, 2]", "[]"}) {
    options.paths = {folder.file("x.json", text)};
    EXPECT_EQ(string_of(load_dataset(options, 1).sources[0].all), std::string(text) + "|");
  }
}

TEST(LoadDataset, FilesOfSeveralKindsBecomeOneSource) {
  const WorkFolder folder;
  MegatronWriter writer(folder / "m", 70000);
  writer.add(std::vector<i64>{69999, 1});
  writer.finish();
  const DataOptions options =
      training_only({folder.file("a.txt", "ab"), folder / "m", folder.file("b.jsonl", "{\"text\":\"c\"}")});
  const Source source = load_dataset(options, 2).sources.at(0);
  EXPECT_EQ(source.all.tokens(0, 5), (std::vector<i64>{'a', 'b', 69999, 1, 'c'}));
  EXPECT_EQ(starts_of(source.all), (std::vector<i64>{0, 2, 4}));
  EXPECT_EQ(source.num_files, 3);
  // The pair of files is found by any of its names, and once in a folder.
  for (const char* name : {"m.idx", "m.bin"})
    EXPECT_EQ(load_dataset(training_only({folder / name}), 1).sources[0].all.size(), 2);
  EXPECT_EQ(load_dataset(training_only({folder.path().string()}), 1).sources[0].all.size(), 5);
}

TEST(LoadDataset, WeightsMakeASourceOfEachPath) {
  const WorkFolder folder;
  DataOptions options = training_only({folder.file("a", "aaaa"), folder.file("b", "bbbb")});
  options.weights = {3, 1};
  const Dataset data = load_dataset(options, 2);
  ASSERT_EQ(data.sources.size(), 2U);
  EXPECT_EQ(string_of(data.sources[1].train), "bbbb");
  EXPECT_EQ(data.sources[0].share, 0.75);
  options.weights = {3};
  EXPECT_EQ(message_of<ConfigError>(options, 2),
            "[data.weights] got 1 weight, expected one for each of 2 paths");
  EXPECT_EQ(data.sources[0].domain, "a");
  options.weights = {3, 1};
  options.domains = {"code", "code"};
  EXPECT_EQ(load_dataset(options, 2).sources[1].domain, "code");
  options.domains = {"code"};
  EXPECT_EQ(message_of<ConfigError>(options, 2),
            "[data.domains] got 1 domain, expected one for each of 2 paths");
  options.weights = {};
  EXPECT_EQ(
      message_of<ConfigError>(options, 2),
      "[data.domains] got 1 domain, expected none where all paths are one source. Give data.weights, one "
      "for each of data.paths");
  options.domains = {};
  options.weights = {1, 1};
  options.paths[1] = folder.file("b", "b");
  EXPECT_NE(message_of<ConfigError>(options, 2).find("got 1 token from 1 file of " + options.paths[1]),
            std::string::npos);
}

TEST(TokenStream, ChecksumTellsChangedTokensAndKeepsThatOfTheBytes) {
  const Dataset data = byte_dataset(counting_bytes(100), {1, 2, 3});
  Dataset other = byte_dataset(counting_bytes(100), {9});
  EXPECT_EQ(data.checksum(), other.checksum());  // validation does not count
  std::vector<std::uint8_t> bytes = counting_bytes(100);
  bytes[57] ^= 1;
  EXPECT_NE(data.checksum(), byte_dataset(bytes, {}).checksum());
}

TEST(UnigramEntropy, OfUniformAndConstantTokens) {
  const auto entropy = [](const std::vector<std::uint8_t>& bytes) {
    return unigram_entropy(byte_dataset(bytes, {}).sources[0].train);
  };
  std::vector<std::uint8_t> all(256);
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint8_t>(i);
  EXPECT_NEAR(entropy(all), std::log(256.0), 1e-12);
  EXPECT_EQ(entropy(std::vector<std::uint8_t>(10, 65)), 0);
  EXPECT_NEAR(entropy({0, 0, 1, 1}), std::log(2.0), 1e-12);
}

}  // namespace
}  // namespace hetermoe
