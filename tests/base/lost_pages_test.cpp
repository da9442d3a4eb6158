#include "hetermoe/base/lost_pages.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

/// Reads a file in memory of which nothing is left.
void read_what_is_gone(const std::string& path) {
  name_files_that_shrink([] { std::fputs("last words\n", stderr); });
  const int file = ::open(path.c_str(), O_RDWR);
  const auto* bytes =
      static_cast<const volatile char*>(::mmap(nullptr, 8192, PROT_READ, MAP_PRIVATE, file, 0));
  if (::ftruncate(file, 0) != 0) std::exit(3);
  std::exit(bytes[5000]);
}

TEST(LostPages, AFileThatShrinksIsNamed) {
  const WorkFolder folder;
  const std::string path = folder.file("tokens.bin", std::string(8192, 'x'));
  EXPECT_EXIT(read_what_is_gone(path), ::testing::ExitedWithCode(1),
              "tokens.bin\\] became shorter while it was read, or its disk failed: .*\nlast words");
}

TEST(LostPages, OtherFaultsEndAsEver) {
  EXPECT_EXIT(
      {
        name_files_that_shrink();
        ::raise(SIGBUS);
        ::raise(SIGBUS);
      },
      ::testing::KilledBySignal(SIGBUS), "");
}

}  // namespace
}  // namespace hetermoe
