#include "hetermoe/train/checkpoint/resume.h"

#include <gtest/gtest.h>

#include <fstream>

#include "hetermoe/train/checkpoint/shared_folder.h"
#include "tests/support/on_ranks.h"
#include "tests/train/tiny_run.h"

// Several ranks and the files that they share.
namespace hetermoe {
namespace {

using testing::on_ranks;
using Errors = std::vector<std::string>;

/// A folder with the checkpoints of steps 4 and 6, and what two ranks do with it.
class TwoRanks : public ::testing::Test {
 protected:
  void SetUp() override { rig_.run(); }

  /// Each rank has a part of the devices; rank 1 looks for checkpoints in its own way.
  Errors load(const ResumeOptions& of_rank_1) {
    steps_ = {-1, -1};
    return on_ranks(2, [&](const Processes& processes) {
      Session::Options options;
      options.local = processes.rank() == 0 ? std::vector<DeviceId>{0, 1} : std::vector<DeviceId>{2, 3};
      Session session(rig_.model, rig_.cluster, rig_.plan, options);
      ResumeOptions how;
      if (processes.rank() == 1) how = of_rank_1;
      how.visible_within = of_rank_1.visible_within;
      const Resumed resumed = load_newest(rig_.checkpoints(), rig_.model, session.states(), processes, how);
      if (resumed.checkpoint)
        steps_[static_cast<std::size_t>(processes.rank())] = resumed.checkpoint->info.step;
    });
  }

  WorkFolder folder_;
  TinyRun rig_{folder_.path()};
  std::vector<i64> steps_;
};

TEST_F(TwoRanks, AStaleListingIsWaitedForAndNoOlderCheckpointTaken) {
  int looks = 0;
  const Errors errors = load({.visible_within = 60, .look = [&](const fs::path& path) {
                                if (++looks < 4) throw IoError("not there yet");
                                return read_checkpoint(path);
                              }});
  EXPECT_EQ(errors, Errors(2, "no error"));
  EXPECT_EQ(looks, 4);
  EXPECT_EQ(steps_, (std::vector<i64>{6, 6}));
}

TEST_F(TwoRanks, AListingThatStaysStaleEndsTheRunByName) {
  const Errors errors = load({.visible_within = 0.2, .look = [&](const fs::path& path) {
                                if (path.filename() == "step-00000006") throw IoError("never there");
                                return read_checkpoint(path);
                              }});
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("step-00000006] rank 1 on "), std::string::npos) << error;
    EXPECT_NE(error.find("has not seen this checkpoint within 0.2 s"), std::string::npos) << error;
  }
  EXPECT_EQ(steps_, (std::vector<i64>{-1, -1}));
}

TEST_F(TwoRanks, AnotherCheckpointUnderTheSameNameIsNotLoaded) {
  const Errors errors = load({.visible_within = 0.2, .look = [&](const fs::path& path) {
                                FoundCheckpoint found = read_checkpoint(path);
                                found.checksum = "of yesterday";
                                return found;
                              }});
  for (const std::string& error : errors) EXPECT_NE(error.find("rank 1 on "), std::string::npos) << error;
}

TEST_F(TwoRanks, ACheckpointThatOneRankCannotReadIsPassedOverByBoth) {
  // The last tensor of the file is one that some rank reads.
  for (const char* file : {"model.safetensors", "optimizer.safetensors"}) {
    const fs::path path = rig_.checkpoints() / "step-00000006" / file;
    std::fstream bytes(path, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekp(static_cast<i64>(fs::file_size(path)) - 100);
    bytes.put('\x55');
    bytes.put('\x2a');
  }
  EXPECT_EQ(load({.visible_within = 60}), Errors(2, "no error"));
  EXPECT_EQ(steps_, (std::vector<i64>{4, 4}));
}

// --- is the folder shared? ---

TEST(SharedFolder, WhatAllRanksSeeIsAcceptedAndNothingIsLeft) {
  const WorkFolder folder;
  const Errors errors =
      on_ranks(3, [&](const Processes& processes) { check_shared_folder(processes, folder / "out", 60); });
  EXPECT_EQ(errors, Errors(3, "no error"));
  EXPECT_EQ(folder.contents(), (std::vector<std::string>{"out"}));
}

TEST(SharedFolder, ARankWithAFolderOfItsOwnIsNamedBeforeTheFirstStep) {
  const WorkFolder folder;
  const Errors errors = on_ranks(3, [&](const Processes& processes) {
    check_shared_folder(processes, folder / (processes.rank() == 1 ? "of its own" : "out"), 0.2);
  });
  for (const std::string& error : errors) {
    EXPECT_NE(error.find("[output] rank 1 on "), std::string::npos) << error;
    EXPECT_NE(error.find("Give a folder that the hosts share"), std::string::npos) << error;
  }
}

TEST(SharedFolder, WhatRank0CannotWriteIsToldToAll) {
  const WorkFolder folder;
  folder.file("out", "a file");
  const Errors errors =
      on_ranks(2, [&](const Processes& processes) { check_shared_folder(processes, folder / "out", 0.2); });
  for (const std::string& error : errors) EXPECT_NE(error.find("cannot "), std::string::npos) << error;
}

// --- one that takes its time, one that is dead ---

CheckpointShard shard_of(i32 rank) {
  CheckpointShard shard;
  shard.info.step = 3;
  shard.rank = rank;
  shard.num_ranks = 2;
  shard.model = {kept_tensor(fmt::format("w{}", rank), at::full({4}, rank + 1.0))};
  return shard;
}

TEST(ShardWait, ARankThatWritesForLongerThanTheLimitWhileAliveDoesNotEndTheRun) {
  const WorkFolder folder;
  ShardWait slow = {.silence = 3, .beat = 0.05, .before_writing = [] {
                      std::this_thread::sleep_for(std::chrono::seconds(7));
                    }};
  std::thread other([&] { write_checkpoint(folder.path(), shard_of(1), 2, slow); });
  EXPECT_EQ(error_of([&] {
              write_checkpoint(folder.path(), shard_of(0), 2,
                               {.silence = 3, .beat = 0.05, .before_writing = {}});
            }),
            "no error");
  other.join();
  const std::vector<FoundCheckpoint> found = find_checkpoints(folder.path(), kIgnore);
  ASSERT_EQ(found.size(), 1U);
  for (const auto& entry : fs::directory_iterator(found[0].path))
    EXPECT_FALSE(entry.path().filename().string().starts_with("alive")) << entry.path();
}

TEST(ShardWait, ADeadRankIsNamedWhenItsSilenceIsTooLong) {
  const WorkFolder folder;
  const std::string error = error_of<IoError>([&] {
    write_checkpoint(folder.path(), shard_of(0), 2, {.silence = 0.2, .beat = 1, .before_writing = {}});
  });
  EXPECT_NE(error.find("rank 1 has not written its part and shows no sign of life for 0.2 s"),
            std::string::npos)
      << error;
  EXPECT_TRUE(folder.contents().empty());
}

TEST(ShardWait, ARankThatCannotWriteEndsTheWaitAtOnce) {
  const WorkFolder folder;
  const ShardWait breaks = {.silence = 60, .beat = 0.05, .before_writing = [&] {
                              const fs::path written =
                                  folder.path() / ".step-00000003.0.unfinished/shard-00001.json";
                              wait_until([&] { return fs::exists(written); }, 60);
                              throw IoError("no space left");
                            }};
  std::string of_rank_1;
  std::thread other(
      [&] { of_rank_1 = error_of([&] { write_checkpoint(folder.path(), shard_of(1), 2, breaks); }); });
  const std::string error = error_of<IoError>([&] {
    write_checkpoint(folder.path(), shard_of(0), 2, {.silence = 60, .beat = 1, .before_writing = {}});
  });
  other.join();
  EXPECT_EQ(of_rank_1, "no space left");
  EXPECT_NE(error.find("another rank could not write its part"), std::string::npos) << error;
}

}  // namespace
}  // namespace hetermoe
