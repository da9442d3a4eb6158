#include <gtest/gtest.h>

#include "hetermoe/base/file_system.h"
#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/train/growth/growing_job.h"
#include "tests/fault/disk_faults.h"
#include "tests/support/error_of.h"
#include "tests/support/faults.h"
#include "tests/train/tiny_run.h"

// Room on the disk that is asked for before something is written.
namespace hetermoe::testing {
namespace {

TEST(DiskRoom, CheckpointsThatDoNotFitAreRefusedBeforeTheFirstStep) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  TinyRun run(folder / "out");
  disk_faults().free = 3000;
  i64 steps = 0;
  const std::string error = error_of<ConfigError>(
      [&] { run.run(Checkpoints::kOn, [&](Session&, const StepRecord&) { ++steps; }); });
  EXPECT_TRUE(error.starts_with(
      fmt::format("[checkpoint.every] {}/checkpoints has room for 2.93 KiB, expected ", folder / "out")))
      << error;
  EXPECT_TRUE(has(error,
                  " for checkpoints (checkpoint.keep 2 and the one that is being written): free that "
                  "much, give an --output on another disk, or --checkpoint.every 0"));
  EXPECT_EQ(steps, 0);
  EXPECT_FALSE(fs::exists(folder / "out"));
}

/// They make way for those that come.
TEST(DiskRoom, CheckpointsOfTheRunThatGoesOnCountAsRoom) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  TinyRun run(folder.path());
  run.run();
  const Bytes each = folder_bytes(run.checkpoints()) / 2;
  run.job.train.steps = 12;
  disk_faults().free = 0.8 * each;
  EXPECT_TRUE(has(error_of<ConfigError>([&] { run.run(); }), "has room for"));
  disk_faults().free = 1.2 * each;
  EXPECT_EQ(run.run().outcome.first_step, 6);
  disk_faults().free = 0;
  EXPECT_TRUE(run.run().outcome.records.empty());  // it has nothing to write
}

/// Those of another run stay, and where they are until the run may begin.
TEST(DiskRoom, CheckpointsThatAreSetAsideAreNoRoom) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  TinyRun run(folder.path());
  run.run();
  const Bytes each = folder_bytes(run.checkpoints()) / 2;
  run.job.checkpoint.resume = false;
  disk_faults().free = 2.8 * each;
  EXPECT_TRUE(has(error_of<ConfigError>([&] { run.run(); }), "has room for"));
  EXPECT_EQ(run.steps(), (std::vector<i64>{6, 4}));
  disk_faults().free = 3.2 * each;
  EXPECT_EQ(run.run().outcome.first_step, 0);
}

TEST(DiskRoom, ALaterCheckpointWithoutRoomIsLeftOutWithAWord) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  TinyRun run(folder.path());
  const TinyRun::End done = run.run(Checkpoints::kOn, [&](Session&, const StepRecord& record) {
    if (record.step == 3) disk_faults().free = 100;
    if (record.step == 5) disk_faults().free.reset();
  });
  EXPECT_EQ(run.steps(), (std::vector<i64>{6, 2}));
  ASSERT_EQ(done.outcome.notes.size(), 1U);
  EXPECT_TRUE(has(done.outcome.notes[0], "step 4: no checkpoint: "));
  EXPECT_TRUE(has(done.outcome.notes[0], "/checkpoints has room for 100 B, expected "));
  EXPECT_TRUE(has(done.outcome.notes[0],
                  "The training goes on, and the newest checkpoint is that of step 2: "
                  "free that much before the next one is due"));
}

TEST(DiskRoom, TheLastCheckpointWithoutRoomIsAnErrorAndTheOneBeforeStays) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  TinyRun run(folder.path());
  const std::string error = error_of<WriteError>([&] {
    run.run(Checkpoints::kOn, [&](Session&, const StepRecord& record) {
      if (record.step == 3) disk_faults().free = 100;
    });
  });
  EXPECT_TRUE(has(error, "/checkpoints] has room for 100 B, expected "));
  EXPECT_TRUE(has(error, " for the checkpoint of step 6: free that much and start again"));
  EXPECT_EQ(run.steps(), (std::vector<i64>{2}));
  disk_faults() = {};
  EXPECT_EQ(run.run().outcome.first_step, 2);
}

/// Eight steps; experts grow after the fifth.
Job growing_job(const WorkFolder& folder, Settings more = {}) {
  std::string text;
  for (int i = 0; i < 6000; ++i) text += static_cast<char>('a' + i * i % 23);
  Settings all = in_fp64({{"model", "tiny"},
                          {"output", folder / "run"},
                          {"strategy", "single"},
                          {"data.paths", folder.file("text.txt", text)},
                          {"train.seq_len", "8"},
                          {"train.sequences", "4"},
                          {"train.microbatches", "2"},
                          {"train.steps", "8"},
                          {"train.validation_sequences", "0"},
                          {"checkpoint.every", "5"},
                          {"grow.at", "5"}});
  all.insert(all.end(), more.begin(), more.end());
  return job_from_overrides(all);
}

TrainedJob train_growing(const Job& job, const OnStep& on_step = {}) {
  JobRunOptions how;
  how.checkpoints = Checkpoints::kOn;
  return train_growing_job(job, how, on_step, Processes());
}

TEST(DiskRoom, AModelThatGrowsBeyondTheDiskIsRefusedBeforeTheFirstStep) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  disk_faults().free = 12e6;  // three checkpoints of the source have 9 MB
  i64 steps = 0;
  const std::string error = error_of<ConfigError>([&] {
    train_growing(growing_job(folder, {{"grow.factor", "8"}}),
                  [&](const std::string&, const StepRecord&) { ++steps; });
  });
  EXPECT_TRUE(has(error, "/checkpoints has room for 11.4 MiB, expected "));
  EXPECT_TRUE(has(error, " for checkpoints of the model that grew (checkpoint.keep 2 and"));
  EXPECT_EQ(steps, 0);
}

TEST(DiskRoom, AGrowthWithoutRoomEndsTheRunBeforeAnythingIsWritten) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  const Job job = growing_job(folder);
  disk_faults().free = 1e12;
  // It is asked at the start, for the grown model and this one, and for the checkpoint of step 5.
  disk_faults().free_calls = 3;
  const std::string error = error_of<WriteError>([&] { train_growing(job); });
  EXPECT_TRUE(has(error, "/checkpoints] has room for 0 B, expected "));
  EXPECT_TRUE(has(error,
                  "for the checkpoint of the model that grows: free that much and start again, the run "
                  "goes on from "));
  disk_faults() = {};
  EXPECT_EQ(names_in(checkpoint_folder(job.output)), std::vector<std::string>{"step-00000005"});
  EXPECT_EQ(train_growing(job).model.num_experts, 8);
}

TEST(DiskRoom, AFolderOfWeightsThatDoesNotFitIsRefused) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  disk_faults().free = 10;
  EXPECT_EQ(error_of<ConfigError>([&] { write_folder(folder / "model", 1); }),
            fmt::format("[{}] has room for 10 B, expected 16 B of tensors: free that much, or name a folder "
                        "on another disk",
                        folder / "model"));
  EXPECT_TRUE(folder.contents().empty());
}

}  // namespace
}  // namespace hetermoe::testing
