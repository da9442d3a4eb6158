#include "hetermoe/data/text.h"

#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {
namespace fs = std::filesystem;

std::string string_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()), static_cast<std::size_t>(bytes.numel())};
}

template <class E>
std::string message_of(const TextOptions& options, i64 seq_len) {
  return error_of<E>([&] { load_text(options, seq_len); });
}

at::Tensor counting_bytes(i64 size) { return at::arange(size).remainder(251).to(at::kByte); }

TEST(LoadText, TakesFoldersInPathOrderAndSplitsAtTheEnd) {
  const WorkFolder folder;
  folder.file("b.txt", "bbbb");
  folder.file("a/z.txt", "zzzz");
  folder.file("a.txt", "aaaa");
  folder.file("c.bin", "cccc");
  TextOptions options;
  options.paths = {folder.path().string()};
  options.extensions = {".txt"};
  options.validation_share = 0.25;
  const Text text = load_text(options, 2);
  EXPECT_EQ(string_of(text.train), "aaaazzzzb");  // "a.txt" < "a/z.txt" < "b.txt" bytewise
  EXPECT_EQ(string_of(text.validation), "bbb");
  EXPECT_EQ(text.num_files, 3);
}

TEST(CheckVocabulary, AByteThatIsNoTokenIsNamed) {
  ModelConfig model;
  model.name = "small";
  Text text{counting_bytes(100), at::full({3}, 120).to(at::kByte), 1, 0};
  model.vocab = 121;
  EXPECT_EQ(error_of([&] { check_vocabulary(text, model); }), "no error");
  model.vocab = 120;
  EXPECT_EQ(error_of<ConfigError>([&] { check_vocabulary(text, model); }),
            "[model] small has a vocabulary of 120 tokens, but each byte of the text is a token and there "
            "are bytes up "
            "to 120: expected a vocab_size of at least 121 (256 serves any text)");
  text.validation = at::empty({0}, at::kByte);
  EXPECT_EQ(error_of([&] { check_vocabulary(text, model); }), "no error");
}

TEST(LoadText, NamedFilesKeepTheirOrderAndTheLimitCutsTheLast) {
  const WorkFolder folder;
  TextOptions options;
  options.paths = {folder.file("b", "bbbbbb"), folder.file("a", "aaaaaa")};
  options.max_bytes = 8;
  options.validation_share = 0;
  const Text text = load_text(options, 4);
  EXPECT_EQ(string_of(text.train), "bbbbbbaa");
  EXPECT_EQ(text.validation.numel(), 0);
}

TEST(LoadText, BinaryFilesOfAFolderAreSkippedButNamedOnesAreErrors) {
  const WorkFolder folder;
  folder.file("text", "some text");
  const std::string binary = folder.file("binary", std::string("ab\0c", 4));
  TextOptions options;
  options.paths = {folder.path().string()};
  options.validation_share = 0;
  const Text text = load_text(options, 4);
  EXPECT_EQ(string_of(text.train), "some text");
  EXPECT_EQ(text.num_files, 1);
  EXPECT_EQ(text.num_skipped, 1);
  options.paths = {binary};
  EXPECT_EQ(message_of<IoError>(options, 4),
            "[data.paths] " + binary + " is no text: it has a NUL byte, expected text");
}

TEST(LoadText, WhatCannotBeReadIsNamed) {
  TextOptions options;
  options.paths = {"/no/such/text"};
  EXPECT_EQ(message_of<IoError>(options, 4),
            "[data.paths] cannot read /no/such/text: no such file or folder");
}

TEST(LoadText, TooLittleTextNamesTheNeed) {
  const WorkFolder folder;
  TextOptions options;
  options.paths = {folder.file("short", "0123456789")};
  options.validation_share = 0;
  EXPECT_EQ(message_of<ConfigError>(options, 9), "no error");
  EXPECT_EQ(message_of<ConfigError>(options, 10),
            "[data.paths] too little text for training: got 10 bytes from 1 files, expected at least 11 "
            "(train.seq_len + 1). Name more text, or lower train.seq_len");
  options.validation_share = 0.2;
  EXPECT_NE(message_of<ConfigError>(options, 4).find("too little text for validation: got 2 bytes"),
            std::string::npos);
}

TEST(LoadText, AFolderWithoutTextIsAnError) {
  const WorkFolder folder;
  TextOptions options;
  options.paths = {folder.path().string()};
  EXPECT_NE(message_of<ConfigError>(options, 4).find("got 0 bytes from 0 files"), std::string::npos);
}

TEST(LoadText, DefaultIsThePythonLibraryOfThisMachine) {
  if (python_library().empty()) GTEST_SKIP() << "no Python standard library here";
  TextOptions options;
  options.max_bytes = 200000;
  const Text text = load_text(options, 128);
  EXPECT_EQ(text.train.numel() + text.validation.numel(), 200000);
  const double entropy = unigram_entropy(text.train);
  EXPECT_GT(entropy, 2.5);  // source code, not noise (5.5) nor padding (0)
  EXPECT_LT(entropy, 4.0);
}

TEST(Sampler, EveryWindowExactlyOncePerEpoch) {
  for (const i64 size : {3, 4, 5, 18, 33, 100, 1000, 65540}) {
    const Sampler sampler(counting_bytes(size), 2, 7);
    ASSERT_EQ(sampler.num_windows(), (size - 1) / 2);
    for (i64 epoch = 0; epoch < 3; ++epoch) {
      std::set<i64> seen;
      for (i64 i = 0; i < sampler.num_windows(); ++i)
        seen.insert(sampler.window_of(epoch * sampler.num_windows() + i));
      EXPECT_EQ(static_cast<i64>(seen.size()), sampler.num_windows());
      EXPECT_EQ(*seen.begin(), 0);
      EXPECT_EQ(*seen.rbegin(), sampler.num_windows() - 1);
    }
  }
}

TEST(Sampler, OrderFollowsFromSeedAndEpoch) {
  const at::Tensor bytes = counting_bytes(2001);
  const Sampler one(bytes, 2, 1), same(bytes, 2, 1), other(bytes, 2, 2);
  i64 equal_to_other = 0, equal_to_next_epoch = 0, in_file_order = 0;
  for (i64 i = 0; i < 1000; ++i) {
    EXPECT_EQ(one.window_of(i), same.window_of(i));
    equal_to_other += one.window_of(i) == other.window_of(i);
    equal_to_next_epoch += one.window_of(i) == one.window_of(1000 + i);
    in_file_order += one.window_of(i) == i;
  }
  // Two random permutations agree in one place on average.
  EXPECT_LT(equal_to_other, 8);
  EXPECT_LT(equal_to_next_epoch, 8);
  EXPECT_LT(in_file_order, 8);
}

// Written down so that no change of compiler, library or code moves the data of a resumed run.
TEST(Sampler, OrderIsFixedForever) {
  const Sampler sampler(counting_bytes(21), 2, 1);
  std::vector<i64> windows;
  for (i64 i = 0; i < 20; ++i) windows.push_back(sampler.window_of(i));
  EXPECT_EQ(windows, (std::vector<i64>{5, 1, 6, 8, 4, 0, 3, 9, 7, 2, 1, 5, 2, 3, 4, 6, 8, 0, 9, 7}));
}

TEST(Sampler, SameSequencesForAnySplitOfASteps) {
  const Sampler sampler(counting_bytes(500), 7, 3);
  const Batch whole = sampler.batch(5, 90);  // across an epoch's end
  i64 first = 5;
  for (const i64 count : {1, 0, 30, 7, 52}) {
    const Batch part = sampler.batch(first, count);
    EXPECT_TRUE(part.tokens.equal(whole.tokens.narrow(0, first - 5, count)));
    EXPECT_TRUE(part.targets.equal(whole.targets.narrow(0, first - 5, count)));
    EXPECT_EQ(part.target_count, count * 7);
    first += count;
  }
  EXPECT_EQ(first, 95);
}

TEST(Sampler, TargetIsTheNextByte) {
  const at::Tensor bytes = counting_bytes(200);
  const Sampler sampler(bytes, 9, 3);
  const Batch batch = sampler.batch(0, sampler.num_windows());
  ASSERT_EQ(batch.tokens.sizes(), (at::IntArrayRef{22, 9}));
  EXPECT_EQ(batch.tokens.scalar_type(), at::kLong);
  EXPECT_TRUE(batch.targets.equal(batch.tokens + 1));  // counting_bytes does not wrap below 251
  EXPECT_EQ(batch.targets.max().item<i64>(), 22 * 9);
}

TEST(Sampler, TooFewBytesIsAnError) {
  EXPECT_EQ(Sampler(counting_bytes(9), 8, 1).num_windows(), 1);
  EXPECT_THROW(Sampler(counting_bytes(8), 8, 1), ConfigError);
}

TEST(UnigramEntropy, OfUniformAndConstantBytes) {
  EXPECT_NEAR(unigram_entropy(at::arange(256).to(at::kByte)), std::log(256.0), 1e-12);
  EXPECT_EQ(unigram_entropy(at::full({10}, 65, at::kByte)), 0);
  EXPECT_NEAR(unigram_entropy(at::arange(4).floor_divide(2).to(at::kByte)), std::log(2.0), 1e-12);
}

}  // namespace
}  // namespace hetermoe
