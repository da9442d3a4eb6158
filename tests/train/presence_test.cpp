#include "hetermoe/train/session/presence.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "hetermoe/train/run/trainer.h"
#include "tests/support/work_folder.h"

namespace hetermoe {
namespace {

/// A child process with a Presence, which then does something.
template <class F>
void in_a_child(const WorkFolder& folder, i32 rank, F&& then) {
  const pid_t child = ::fork();
  if (child == 0) {
    {
      const Presence presence(folder.path(), rank, {rank, rank + 10});
      then();
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
}

TEST(Presence, OnlyARankThatEndsWithoutAWordHasVanished) {
  const WorkFolder folder;
  in_a_child(folder, 0, [] {});
  in_a_child(folder, 1, [] { ::raise(SIGKILL); });
  in_a_child(folder, 2, [] {
    stop_on_interrupt();
    ::raise(SIGTERM);
    ::usleep(1000);    // ThreadSanitizer calls handlers when a thread waits
    ::raise(SIGKILL);  // what a launcher does next
  });
  in_a_child(folder, 3, [] {
    Presence::tell_failed();
    ::raise(SIGKILL);
  });
  const std::vector<RankEnd> ends = read_rank_ends(folder.path());
  ASSERT_EQ(ends.size(), 4U);
  for (i32 rank = 0; rank < 4; ++rank) {
    const RankEnd& end = ends[static_cast<std::size_t>(rank)];
    EXPECT_EQ(end.rank, rank);
    EXPECT_EQ(end.devices, (std::vector<DeviceId>{rank, rank + 10}));
    EXPECT_EQ(end.vanished, rank == 1) << rank;
  }
  forget_ranks(folder.path());
  EXPECT_TRUE(read_rank_ends(folder.path()).empty());
}

TEST(Presence, OfOtherFilesNothingIsReadOrRemoved) {
  const WorkFolder folder;
  std::filesystem::create_directories(folder.path() / "ranks/rank-00007");
  for (const char* name : {"thesis.txt", "rank-x", "rank-1", "rank-00007/notes"})
    folder.file(std::string("ranks/") + name, "{\"thesis\": 1}\n");
  in_a_child(folder, 0, [] {});
  EXPECT_EQ(read_rank_ends(folder.path()).size(), 1U);
  forget_ranks(folder.path());
  EXPECT_TRUE(read_rank_ends(folder.path()).empty());
  for (const char* name : {"thesis.txt", "rank-x", "rank-1", "rank-00007/notes"})
    EXPECT_TRUE(std::filesystem::exists(folder.path() / "ranks" / name)) << name;
}

}  // namespace
}  // namespace hetermoe
