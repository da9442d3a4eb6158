#include "hetermoe/kernels/code_cache.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <thread>
#include <vector>

#include "hetermoe/base/host_name.h"
#include "hetermoe/base/types.h"

namespace hetermoe::kernels {
namespace {

namespace fs = std::filesystem;

class CodeCache : public ::testing::Test {
 protected:
  CodeCache() : folder_(fs::temp_directory_path() / ("hm_cache_" + std::to_string(getpid()))) {
    fs::remove_all(folder_);
  }
  ~CodeCache() override { fs::remove_all(folder_); }

  /// Compiles to `code`, where it compiles at all.
  CachedCode get(const std::string& identity, const std::string& code) {
    return cached_code(folder_, identity, [&] { return code; });
  }
  fs::path only_file() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::directory_iterator(folder_)) files.push_back(entry.path());
    EXPECT_EQ(files.size(), 1u);
    return files.at(0);
  }

  fs::path folder_;
};

const std::string kCode("\177ELF\0with zeros\n", 16);

TEST_F(CodeCache, CompilesOnceAndReadsAfterwards) {
  const CachedCode first = get("one", kCode), second = get("one", "of another compiler");
  EXPECT_TRUE(first.compiled);
  EXPECT_FALSE(second.compiled);
  EXPECT_EQ(first.code, kCode);
  EXPECT_EQ(second.code, kCode);
  EXPECT_EQ(first.warning + second.warning, "");
  EXPECT_TRUE(get("two", "other").compiled);  // another architecture, say
}

TEST_F(CodeCache, EveryDamagedByteIsNoticedAndRepaired) {
  get("one", kCode);
  std::ifstream in(only_file(), std::ios::binary);
  const std::string good((std::istreambuf_iterator<char>(in)), {});
  for (std::size_t i = 0; i <= good.size(); ++i) {
    std::string bad = good;
    if (i < good.size())
      bad[i] = static_cast<char>(bad[i] ^ 4);
    else
      bad.resize(good.size() / 2);
    std::ofstream(only_file(), std::ios::binary) << bad;
    const CachedCode repaired = get("one", kCode);
    EXPECT_TRUE(repaired.compiled) << i;
    EXPECT_NE(repaired.warning.find("is damaged: the kernel is compiled anew"), std::string::npos) << i;
    EXPECT_EQ(repaired.code, kCode);
    EXPECT_FALSE(get("one", "never").compiled) << i;
  }
}

TEST_F(CodeCache, AnEmptyFileIsDamaged) {
  get("one", kCode);
  std::ofstream(only_file(), std::ios::trunc).close();
  EXPECT_TRUE(get("one", kCode).compiled);
}

TEST_F(CodeCache, AFolderThatCannotBeWrittenCostsASentence) {
  std::ofstream(folder_) << "a file where the folder should be";
  const CachedCode got = get("one", kCode);
  EXPECT_EQ(got.code, kCode);
  EXPECT_NE(got.warning.find("cannot keep compiled kernels"), std::string::npos) << got.warning;
  EXPECT_NE(got.warning.find("HETERMOE_CACHE_DIR"), std::string::npos);
  EXPECT_EQ(cached_code({}, "one", [] { return kCode; }).code, kCode);
  EXPECT_NE(cached_code({}, "one", [] { return kCode; }).warning.find("HETERMOE_CACHE_DIR"),
            std::string::npos);
}

TEST_F(CodeCache, ManyProcessesMayWriteTheSame) {
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([this] {
      for (int n = 0; n < 20; ++n) EXPECT_EQ(get(std::to_string(n), kCode).code, kCode);
    });
  threads.clear();
  i64 files = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator(folder_)) ++files;
  EXPECT_EQ(files, 20);
}

/// Containers of two hosts with one shared home often have equal process ids.
TEST_F(CodeCache, TemporaryNamesTellHostsProcessesAndCallsApart) {
  const std::string first = temporary_beside(folder_ / "abc"), second = temporary_beside(folder_ / "abc");
  EXPECT_TRUE(first.starts_with((folder_ / "abc.").string() + host_name() + "." + std::to_string(getpid())))
      << first;
  EXPECT_NE(first, second);
}

/// Changes the environment: for a process of its own.
bool folder_follows_the_environment() {
  setenv("HOME", "/home/me", 1);
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HETERMOE_CACHE_DIR");
  const bool home = code_cache_folder() == "/home/me/.cache/hetermoe/kernels";
  setenv("XDG_CACHE_HOME", "/cache", 1);
  const bool xdg = code_cache_folder() == "/cache/hetermoe/kernels";
  setenv("HETERMOE_CACHE_DIR", "/own", 1);
  const bool own = code_cache_folder() == "/own";
  unsetenv("HETERMOE_CACHE_DIR");
  unsetenv("XDG_CACHE_HOME");
  unsetenv("HOME");
  return home && xdg && own && code_cache_folder().empty();
}

TEST(CodeCacheFolder, IsTheUsersOwn) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(std::_Exit(folder_follows_the_environment() ? 0 : 1), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace hetermoe::kernels
