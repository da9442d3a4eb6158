#include "hetermoe/data/tokenizer.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "hetermoe/data/dataset.h"
#include "hetermoe/data/token_files.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

const std::string kModels = HM_SOURCE_DIR "/tests/data/sentencepiece/";

/// Whether this build has libsentencepiece.
bool has_sentencepiece() {
  return error_of<ConfigError>([] { make_tokenizer(kModels + "unigram.model"); }) == "no error";
}

TEST(Tokenizers, BytesAreTokens) {
  const auto tokenizer = make_tokenizer("bytes");
  EXPECT_EQ(tokenizer->encode("a\xff"), (std::vector<i64>{97, 255}));
  EXPECT_EQ(tokenizer->decode(std::vector<i64>{97, 300, 98}), "a<300>b");
  EXPECT_EQ(tokenizer->vocab_size(), 256);
  EXPECT_EQ(tokenizer->end_token(), std::nullopt);
}

TEST(Tokenizers, WhatIsNoneIsRefused) {
  EXPECT_EQ(
      error_of<ConfigError>([] { make_tokenizer("words"); }),
      "[data.tokenizer] got words, expected bytes, a SentencePiece model (FILE.model) or a tokenizer.json");
}

TEST(FindTokenizer, TheFilesOfAFolderTellElseTheRunThatLeftItElseItsVocabulary) {
  const WorkFolder folder;
  const std::filesystem::path path = folder.path();
  EXPECT_EQ(find_tokenizer(path), "");
  folder.file("config.json", R"({"vocab_size": 40})");
  EXPECT_EQ(find_tokenizer(path), "");
  EXPECT_EQ(
      error_of<ConfigError>([&] { make_tokenizer(path.string()); }),
      "[data.tokenizer] " + path.string() +
          " has no tokenizer, and its vocabulary is not that of bytes: expected --data.tokenizer "
          "FILE.model or tokenizer.json, bytes if these are its tokens, or files of tokens in data.paths");
  folder.file("config.json", R"({"vocab_size": 256})");
  EXPECT_EQ(find_tokenizer(path), "bytes");
  EXPECT_EQ(make_tokenizer(path.string())->vocab_size(), 256);
  folder.file("hetermoe.json", R"({"job": {"data": {"tokenizer": "a.model"}}})");
  EXPECT_EQ(find_tokenizer(path), "a.model");
  folder.file("hetermoe.json", R"({"job": {"data": {"tokenizer": ")" + path.string() + R"("}}})");
  EXPECT_EQ(find_tokenizer(path), "bytes");  // as much as that run knew
  folder.file("tokenizer.json", "{}");
  EXPECT_EQ(find_tokenizer(path), folder / "tokenizer.json");
  folder.file("tokenizer.model", "");
  EXPECT_EQ(find_tokenizer(path), folder / "tokenizer.model");
}

TEST(FindTokenizer, OneOfHuggingFaceIsReadForTextAndATokenizerOfAnotherKindRefused) {
  const WorkFolder folder;
  folder.file("model/tokenizer.json", read_text(HM_SOURCE_DIR "/tests/data/hf/qwen3.json"));
  DataOptions options;
  options.paths = {folder.file("a.txt", "some text")};
  options.validation_share = 0;
  const std::string json = folder / "model/tokenizer.json";
  for (const std::string& tokenizer : {json, folder / "model"}) {
    options.tokenizer = tokenizer;
    const TokenStream all = load_dataset(options, 2).sources.at(0).all;
    EXPECT_EQ(all.tokens(0, all.size()), make_tokenizer(json)->encode("some text"));
  }
  folder.file("model/tokenizer.json", R"({"model": {"type": "Unigram"}})");
  EXPECT_NE(error_of<ConfigError>([&] { load_dataset(options, 2); }).find("tools/tokenize_text.py"),
            std::string::npos);
  // Tokens need none.
  MegatronWriter writer(folder / "m", 70000);
  writer.add(std::vector<i64>{69999, 1, 2});
  writer.finish();
  options.paths = {folder / "m"};
  const Dataset data = load_dataset(options, 2);
  EXPECT_EQ(data.tokenizer, nullptr);
  EXPECT_EQ(data.sources.at(0).all.tokens(0, 3), (std::vector<i64>{69999, 1, 2}));
  EXPECT_EQ(data_line(data, options),
            (folder / "m") + " (1 file): 3 tokens, all there are; tokenizer that of the files");
}

/// Files of tokens are counted in tokens, text in bytes where bytes are its tokens.
TEST(TokenWord, IsThatOfTheData) {
  const WorkFolder folder;
  MegatronWriter writer(folder / "m", 70000);
  writer.add(std::vector<i64>{69999, 1, 2, 65});
  writer.finish();
  const std::string text = folder.file("a.txt", "some text");
  DataOptions options;
  options.validation_share = 0;
  const auto word = [&](std::vector<std::string> paths, const std::string& tokenizer = "bytes") {
    options.paths = std::move(paths);
    options.tokenizer = tokenizer;
    return std::string(token_word(options));
  };
  EXPECT_EQ(word({text}), "byte");
  EXPECT_EQ(word({folder / "m"}), "token");
  EXPECT_EQ(word({folder / "m.idx"}), "token");
  EXPECT_EQ(word({text, folder / "m"}), "token");
  EXPECT_EQ(word({text}, "x.model"), "token");
  EXPECT_EQ(word({folder / "gone"}), "token");
  options.paths = {folder / "m"};
  options.tokenizer = "bytes";
  EXPECT_EQ(load_dataset(options, 2).tokenizer, nullptr) << "ids of a file are no bytes";
  options.paths = {text};
  EXPECT_NE(load_dataset(options, 2).tokenizer, nullptr);
}

// The ids are those of spm_encode of SentencePiece 0.1.97.
TEST(SentencePiece, EncodesAsItsOwnProgramDoes) {
  if (!has_sentencepiece()) GTEST_SKIP() << "built without libsentencepiece";
  const auto unigram = make_tokenizer(kModels + "unigram.model");
  EXPECT_EQ(unigram->encode("An expert of a layer"), (std::vector<i64>{96, 17, 106, 18, 9, 68}));
  EXPECT_EQ(unigram->decode(std::vector<i64>{96, 17, 106, 18, 9, 68}), "An expert of a layer");
  EXPECT_EQ(unigram->decode(std::vector<i64>{96, 9999, 17}).find("<9999>") != std::string::npos, true);
  EXPECT_EQ(unigram->vocab_size(), 300);
  EXPECT_EQ(unigram->end_token(), 2);
  const auto bpe = make_tokenizer(kModels + "bpe.model");
  const std::string text = "\xc3\xa9  x";  // bytes that no piece has
  EXPECT_EQ(bpe->encode(text), (std::vector<i64>{441, 198, 172, 441, 441, 471}));
  EXPECT_EQ(bpe->decode(bpe->encode(text)), text);
}

TEST(SentencePiece, LongTextsAreEncodedInPartsThatLoseNothing) {
  if (!has_sentencepiece()) GTEST_SKIP() << "built without libsentencepiece";
  std::string text;
  while (text.size() < 100000) text += "a layer of experts\n";
  const auto bpe = make_tokenizer(kModels + "bpe.model");
  const std::size_t part = text.rfind('\n', 1 << 16) + 1;
  // The model begins a text with a blank.
  const std::string expected = fmt::format("{} {}", text.substr(0, part), text.substr(part));
  EXPECT_EQ(bpe->decode(bpe->encode(text)), expected);
}

TEST(SentencePiece, DocumentsEndWithTheModelsEndToken) {
  if (!has_sentencepiece()) GTEST_SKIP() << "built without libsentencepiece";
  const WorkFolder folder;
  DataOptions options;
  options.paths = {
      folder.file("x.jsonl", "{\"text\": \"a layer\"}\n{\"text\": \" \"}\n{\"text\": \"expert\"}\n")};
  options.tokenizer = kModels + "unigram.model";
  options.validation_share = 0;
  const Source source = load_dataset(options, 2).sources.at(0);
  EXPECT_EQ(source.all.tokens(0, source.all.size()), (std::vector<i64>{9, 68, 2, 2, 106, 2}));
  EXPECT_EQ(source.all.num_documents(), 3);
  EXPECT_EQ(source.all.document(2), 4);
}

TEST(SentencePiece, AFileThatIsNoModelIsRefused) {
  if (!has_sentencepiece()) GTEST_SKIP() << "built without libsentencepiece";
  const WorkFolder folder;
  const std::string path = folder.file("x.model", "no model");
  EXPECT_EQ(error_of<IoError>([&] {
              make_tokenizer(path);
            }).find(fmt::format("[{}] is no SentencePiece model", path)),
            0U);
}

}  // namespace
}  // namespace hetermoe
