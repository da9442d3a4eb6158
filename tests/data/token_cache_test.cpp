#include "hetermoe/data/token_cache.h"

#include <gtest/gtest.h>

#include <thread>

#include "hetermoe/base/index.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {
namespace fs = std::filesystem;

/// JSON lines of more than a megabyte, and empty documents among them.
std::string lines(int count) {
  std::string out;
  for (int i = 0; i < count; ++i)
    out += Json{{"text", i % 100 == 7 ? "" : fmt::format("document {} of layers and experts, é 中文", i)}}
               .dump() +
           "\n";
  return out;
}

struct Corpus {
  WorkFolder folder;
  DataOptions options;
  Corpus() {
    options.paths = {folder.file("a.jsonl", lines(20000)),
                     folder.file("b.txt", std::string(1 << 16, 'x') + "\nend\n")};
    options.tokenizer = HM_SOURCE_DIR "/tests/data/hf/qwen3.json";
    options.cache = folder / "cache";
    options.validation_share = 0.1;
  }
  Dataset load() const { return load_dataset(options, 64); }
  /// Corpora that are kept.
  i64 num_kept() const {
    std::error_code none;
    i64 out = 0;
    for (const auto& entry : fs::directory_iterator(folder / "cache", none))
      out += entry.path().extension() == ".json";
    return out;
  }
};

void expect_same(const Dataset& a, const Dataset& b) {
  const Source &x = a.sources.at(0), &y = b.sources.at(0);
  ASSERT_EQ(x.all.size(), y.all.size());
  EXPECT_EQ(x.all.tokens(0, x.all.size()), y.all.tokens(0, y.all.size()));
  std::vector<i64> p(idx(x.all.size())), q(p.size());
  x.all.mark_starts(0, x.all.size(), p.data());
  y.all.mark_starts(0, y.all.size(), q.data());
  EXPECT_EQ(p, q);
  EXPECT_EQ(a.checksum(), b.checksum());
  EXPECT_EQ(x.train.size(), y.train.size());
  EXPECT_EQ(std::tie(x.num_files, x.num_skipped, x.skipped, x.num_empty, x.bytes_read, x.bytes_there),
            std::tie(y.num_files, y.num_skipped, y.skipped, y.num_empty, y.bytes_read, y.bytes_there));
}

TEST(TokenCache, WhatWasKeptIsWhatIsMade) {
  Corpus corpus;
  const Dataset made = corpus.load();
  EXPECT_EQ(corpus.num_kept(), 1);
  expect_same(made, corpus.load());
  EXPECT_EQ(corpus.num_kept(), 1);
  corpus.options.cache = "none";
  expect_same(made, corpus.load());
}

TEST(TokenCache, AnotherFileTokenizerOrOptionIsMadeAnew) {
  Corpus corpus;
  corpus.load();
  i64 expected = 1;
  const auto made_anew = [&](const char* what) {
    const Dataset data = corpus.load();
    EXPECT_EQ(corpus.num_kept(), ++expected) << what;
    DataOptions without = corpus.options;
    without.cache = "none";
    expect_same(data, load_dataset(without, 64));
  };
  corpus.folder.file("b.txt", std::string(1 << 16, 'y') + "\nend\n");  // as long as before
  made_anew("file");
  corpus.options.tokenizer = HM_SOURCE_DIR "/tests/data/hf/llama3.json";
  made_anew("tokenizer");
  corpus.options.end_token = 3;
  made_anew("end token");
  corpus.options.max_bytes = 1'100'000;
  made_anew("max_bytes");
}

TEST(TokenCache, DamageIsMadeGood) {
  Corpus corpus;
  const Dataset made = corpus.load();
  for (const char* ending : {".json", ".idx", ".bin"}) {
    for (const auto& entry : fs::directory_iterator(corpus.folder / "cache")) {
      if (entry.path().extension() == ending) fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
    }
    expect_same(made, corpus.load());
    expect_same(made, corpus.load());
  }
}

TEST(TokenCache, AFolderThatCannotBeWrittenHindersNothing) {
  Corpus corpus;
  const Dataset made = corpus.load();
  corpus.options.cache = corpus.folder.file("no_folder", "");
  expect_same(made, corpus.load());
}

TEST(TokenCache, LittleTextAndBytesAreNotKept) {
  Corpus corpus;
  corpus.options.paths = {corpus.folder.file("c.txt", std::string(10000, 'x'))};
  corpus.load();
  corpus.options.paths = {corpus.folder / "a.jsonl"};
  corpus.options.tokenizer = "bytes";
  corpus.load();
  EXPECT_EQ(corpus.num_kept(), 0);
}

TEST(TokenCache, OneOfSeveralMakesTheTokensAndTheOthersWait) {
  const WorkFolder folder;
  const Json identity = {{"vocab", 1000}};
  std::atomic<int> made = 0;
  std::vector<std::jthread> threads;
  std::array<i64, 4> sizes{};
  for (std::size_t t = 0; t < sizes.size(); ++t) {
    threads.emplace_back([&, t] {
      const Source source = cached_source(folder / "cache", identity, [&] {
        ++made;
        Source out;
        TokenBuilder tokens(TokenType::kU16);
        for (i64 i = 0; i < 100; ++i) tokens.add(i);
        out.all.append(tokens.finish(), std::vector<i64>{0, 40});
        return out;
      });
      sizes[t] = source.all.size() + source.all.num_documents();
    });
  }
  threads.clear();
  EXPECT_EQ(made, 1);
  EXPECT_EQ(sizes, (std::array<i64, 4>{102, 102, 102, 102}));
}

}  // namespace
}  // namespace hetermoe
