#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <set>

#include "hetermoe/train/checkpoint/resume.h"
#include "hetermoe/weights/hf_writer.h"
#include "tests/fault/disk_faults.h"
#include "tests/support/case_count.h"
#include "tests/support/error_of.h"
#include "tests/support/faults.h"
#include "tests/support/sanitized.h"
#include "tests/train/tiny_run.h"

namespace hetermoe::testing {

DiskFaults& disk_faults() {
  static DiskFaults faults;
  return faults;
}

namespace {

std::mutex& fault_mutex() {
  static std::mutex mutex;
  return mutex;
}

/// How many of these bytes the disk takes. Reports of tests are no files of theirs.
std::size_t taken(int file, std::size_t size) {
  struct stat info {};
  if (!disk_faults().room || file <= 2 || ::fstat(file, &info) != 0 || !S_ISREG(info.st_mode)) return size;
  const std::lock_guard lock(fault_mutex());
  const auto now = std::min(static_cast<i64>(size), *disk_faults().room);
  *disk_faults().room -= now;
  return static_cast<std::size_t>(now);
}

ssize_t write_or_fail(int file, const void* data, std::size_t size) {
  const std::size_t now = taken(file, size);
  if (now > 0 || size == 0) return ::syscall(SYS_write, file, data, now);
  errno = ENOSPC;
  return -1;
}

void kill_before_a_change() {
  std::optional<i64>& left = disk_faults().calls_until_kill;
  if (left && (*left)-- == 0) ::raise(SIGKILL);
}

void kill_before_a_rename(const char* from, const char* to) {
  kill_before_a_change();
  if (disk_faults().kills_rename && disk_faults().kills_rename(from, to)) ::raise(SIGKILL);
}

}  // namespace
}  // namespace hetermoe::testing

// In the place of the C library's.
#define HM_IN_PLACE extern "C" __attribute__((visibility("default")))

HM_IN_PLACE ssize_t write(int file, const void* data, size_t size) {
  return hetermoe::testing::write_or_fail(file, data, size);
}

HM_IN_PLACE ssize_t writev(int file, const iovec* parts, int count) {
  ssize_t sum = 0;
  for (int i = 0; i < count; ++i) {
    const ssize_t done = hetermoe::testing::write_or_fail(file, parts[i].iov_base, parts[i].iov_len);
    if (done < 0) return sum > 0 ? sum : done;
    sum += done;
    if (static_cast<size_t>(done) < parts[i].iov_len) break;
  }
  return sum;
}

HM_IN_PLACE int rename(const char* from, const char* to) noexcept {
  hetermoe::testing::kill_before_a_rename(from, to);
  return static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}

HM_IN_PLACE int renameat2(int from_at, const char* from, int to_at, const char* to, unsigned flags) noexcept {
  if (hetermoe::testing::disk_faults().no_exchange) {
    errno = EINVAL;
    return -1;
  }
  hetermoe::testing::kill_before_a_rename(from, to);
  return static_cast<int>(::syscall(SYS_renameat2, from_at, from, to_at, to, flags));
}

HM_IN_PLACE int unlinkat(int at, const char* path, int flags) noexcept {
  hetermoe::testing::kill_before_a_change();
  return static_cast<int>(::syscall(SYS_unlinkat, at, path, flags));
}

HM_IN_PLACE int statvfs(const char* path, struct statvfs* info) noexcept {
  static const auto real =
      reinterpret_cast<int (*)(const char*, struct statvfs*)>(::dlsym(RTLD_NEXT, "statvfs"));
  const int code = real(path, info);
  hetermoe::testing::DiskFaults& faults = hetermoe::testing::disk_faults();
  if (code == 0 && faults.free) {
    if (faults.free_calls >= 0 && faults.free_calls-- == 0) faults.free = 0, faults.free_calls = -1;
    info->f_frsize = 1;
    info->f_bavail = static_cast<fsblkcnt_t>(*faults.free);
  }
  return code;
}

namespace hetermoe::testing {
namespace {

#define HM_SKIP_WHERE_NOBODY_FORKS() \
  if (kSanitized) GTEST_SKIP() << "sanitizers follow no fork of a program with threads"

/// A checkpoint as a run would write it once more, which growth does.
CheckpointShard shard_again(const FoundCheckpoint& found) {
  CheckpointShard shard;
  shard.info = found.info;
  shard.config = read_json(found.path / "config.json");
  for (auto* list : {&shard.model, &shard.optimizer}) {
    const SafetensorsReader reader(found.path /
                                   (list == &shard.model ? "model.safetensors" : "optimizer.safetensors"));
    for (const std::string& name : reader.names()) list->push_back(kept_tensor(name, reader.read(name)));
  }
  return shard;
}

bool gives_a_checkpoint_its_name(const std::string& from, const std::string& to) {
  return from.ends_with(".unfinished") && fs::path(to).filename().string().starts_with("step-");
}

void rewrite_newest(const TinyRun& run) {
  const FoundCheckpoint newest = find_checkpoints(run.checkpoints(), kIgnore).at(0);
  write_checkpoint(run.checkpoints(), shard_again(newest), 1);
}

/// Trains one step more from the checkpoint of `step`, the only one.
void expect_goes_on_from(TinyRun& run, i64 step) {
  run.job.train.steps = step + 1;
  const TrainOutcome outcome = run.run().outcome;
  ASSERT_EQ(outcome.first_step, step);
  ASSERT_EQ(outcome.records.size(), 1U);
  ASSERT_EQ(names_in(run.checkpoints()), std::vector<std::string>{fmt::format("step-{:08}", step + 1)});
}

/// Where a file system cannot exchange names, no checkpoint has the name between two renames.
TEST(DiskFault, ARunThatIsKilledBetweenTwoRenamesGoesOnFromAWholeCheckpoint) {
  HM_SKIP_WHERE_NOBODY_FORKS();
  const WorkFolder folder;
  TinyRun run(folder.path(), {{"checkpoint.keep", "1"}});
  run.run();
  const DiskFaultsEnd end;
  const i64 kills = case_count(5, 100);
  for (i64 step = 6; step < 6 + kills; ++step) {
    disk_faults().no_exchange = true;
    disk_faults().kills_rename = gives_a_checkpoint_its_name;
    ASSERT_TRUE(is_killed([&] { rewrite_newest(run); }));
    disk_faults() = {};
    ASSERT_TRUE(run.steps().empty());  // neither the old nor the new one has its name
    ASSERT_NO_FATAL_FAILURE(expect_goes_on_from(run, step));
  }
}

/// Before each rename and each removal of a file.
TEST(DiskFault, AWriterThatIsKilledAnywhereLeavesAWholeCheckpoint) {
  HM_SKIP_WHERE_NOBODY_FORKS();
  const DiskFaultsEnd end;
  for (const bool exchange : {true, false}) {
    const WorkFolder folder;
    TinyRun run(folder.path(), {{"checkpoint.keep", "1"}});
    run.run();
    i64 step = 6, kills = 0;
    for (bool killed = true; killed; kills += killed ? 1 : 0) {
      disk_faults().no_exchange = !exchange;
      disk_faults().calls_until_kill = kills;
      killed = is_killed([&] { rewrite_newest(run); });
      disk_faults() = {};
      ASSERT_NO_FATAL_FAILURE(expect_goes_on_from(run, step++)) << kills;
    }
    EXPECT_GT(kills, 5);
  }
}

/// While the newest is written and an older one removed.
TEST(DiskFault, AKillWhileAnOlderOneIsRemovedLeavesNoPartOfIt) {
  HM_SKIP_WHERE_NOBODY_FORKS();
  const DiskFaultsEnd end;
  i64 kills = 0;
  for (bool killed = true; killed; kills += killed ? 1 : 0) {
    const WorkFolder folder;
    TinyRun run(folder.path());
    run.run();  // leaves those of steps 4 and 6
    disk_faults().calls_until_kill = kills;
    killed = is_killed([&] {
      CheckpointShard next = shard_again(find_checkpoints(run.checkpoints(), kIgnore).at(0));
      next.info.step = 7;
      write_checkpoint(run.checkpoints(), next, 2);
    });
    disk_faults() = {};
    std::vector<std::string> broken;
    find_checkpoints(run.checkpoints(), [&](const std::string& text) { broken.push_back(text); });
    EXPECT_EQ(broken, std::vector<std::string>{}) << kills;
    recover_checkpoints(run.checkpoints());
    const std::vector<i64> steps = run.steps();
    EXPECT_TRUE(steps == (std::vector<i64>{6, 4}) || steps == (std::vector<i64>{7, 6, 4}) ||
                steps == (std::vector<i64>{7, 6}))
        << kills;
    EXPECT_EQ(names_in(run.checkpoints()).size(), steps.size()) << kills;
  }
  EXPECT_GT(kills, 5);
}

/// A folder that the program has not made only looks like a checkpoint.
TEST(DiskFault, AFolderOfTheUserIsSetAsideAndNotRemoved) {
  const WorkFolder folder;
  TinyRun run(folder.path());
  run.run(Checkpoints::kOn, [&](Session&, const StepRecord& record) {
    if (record.step == 3) folder.file("checkpoints/step-00000004/thesis.txt", "mine");
  });
  EXPECT_EQ(run.steps(), (std::vector<i64>{6, 4}));
  std::string kept;
  for (const std::string& name : folder.contents()) {
    if (name.ends_with("/thesis.txt")) kept = name;
  }
  ASSERT_NE(kept, "");
  EXPECT_EQ(read_text(folder / kept), "mine");
}

CheckpointShard small_shard(i64 step) {
  CheckpointShard shard;
  shard.info = {.step = step, .run = "a", .version = "1", .job = {{"model", "tiny"}}, .plan = nullptr};
  shard.config = {{"model_type", "mixtral"}};
  shard.model = {kept_tensor("w", at::full({6}, static_cast<double>(step)))};
  shard.optimizer = {kept_tensor("w.exp_avg", at::full({6}, static_cast<double>(step)))};
  return shard;
}

/// Of every byte of a checkpoint, header and listing included.
TEST(DiskFault, ADiskThatIsFullAtAnyByteLeavesTheCheckpointBefore) {
  const WorkFolder folder;
  const DiskFaultsEnd end;
  write_checkpoint(folder.path(), small_shard(3), 1);
  const std::vector<std::string> before = folder.contents();
  const i64 stride = case_count(11, 1);
  i64 room = 0;
  std::set<std::string> files;
  for (;; room += stride) {
    disk_faults().room = room;
    const std::string error =
        error_of<WriteError>([&] { write_checkpoint(folder.path(), small_shard(4), 1); });
    disk_faults() = {};
    if (error == "no error") break;
    const std::string unfinished = ".step-00000004.0.unfinished/";
    ASSERT_TRUE(has(error, unfinished)) << room;
    const std::size_t begin = error.find(unfinished) + unfinished.size();
    files.insert(error.substr(begin, error.find(']') - begin));
    ASSERT_TRUE(has(error, "No space left on device")) << room;
    ASSERT_EQ(folder.contents(), before) << room;
    std::vector<std::string> broken;
    const std::vector<FoundCheckpoint> found =
        find_checkpoints(folder.path(), [&](const std::string& text) { broken.push_back(text); });
    ASSERT_EQ(found.size(), 1U) << room;
    ASSERT_TRUE(broken.empty()) << room;
    ASSERT_EQ(SafetensorsReader(found[0].path / "model.safetensors").read("w")[0].item<double>(), 3);
    ASSERT_EQ(SafetensorsReader(found[0].path / "optimizer.safetensors").read("w.exp_avg")[0].item<double>(),
              3);
  }
  EXPECT_EQ(files, (std::set<std::string>{"checkpoint.json", "config.json", "model.safetensors",
                                          "optimizer.safetensors", "shard-00001.json"}));
  EXPECT_EQ(find_checkpoints(folder.path(), kIgnore).at(0).info.step, 4);
}

// --- folders of weights ---

/// Whatever is there is whole, with the model of an earlier step.
TEST(DiskFault, AFolderOfWeightsThatIsReplacedIsThereAtAnyKill) {
  HM_SKIP_WHERE_NOBODY_FORKS();
  const DiskFaultsEnd end;
  for (const bool exchange : {true, false}) {
    i64 kills = 0;
    for (bool killed = true; killed; kills += killed ? 1 : 0) {
      const WorkFolder folder;
      const fs::path target = folder.path() / "model", step = export_folder_of(target, 2);
      write_folder(target, 1);
      write_folder(step, 0.5);
      disk_faults().no_exchange = !exchange;
      disk_faults().calls_until_kill = kills;
      killed = is_killed([&] { write_folder(target, 2); });
      disk_faults() = {};
      check_hf_target(target, "");
      const double value = SafetensorsReader(target / "model.safetensors").read("w")[0].item<double>();
      EXPECT_TRUE(value == 1 || value == 2) << kills;
      EXPECT_EQ(SafetensorsReader(step / "model.safetensors").read("w")[0].item<double>(), 0.5) << kills;
      write_folder(target, 3);
      EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"model"}) << kills;
      EXPECT_TRUE(fs::exists(step)) << kills;
    }
    EXPECT_GT(kills, 5);
  }
}

}  // namespace
}  // namespace hetermoe::testing
