#include "hetermoe/train/checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/resource.h>

#include <fstream>

#include "hetermoe/base/checksum.h"
#include "hetermoe/weights/hf_folder.h"
#include "tests/support/error_of.h"
#include "tests/train/differences.h"
#include "tests/train/tiny_run.h"

namespace hetermoe {
namespace {

void flip_byte(const fs::path& path, i64 position) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(position);
  const char byte = static_cast<char>(file.get() ^ 0x10);
  file.seekp(position);
  file.put(byte);
}

// --- safetensors ---

TEST(Safetensors, ComeBackBitForBit) {
  const WorkFolder folder;
  const std::vector<NamedTensor> tensors = {{"a", at::randn({3, 5})},
                                            {"b", at::randn({7}).to(at::kBFloat16)},
                                            {"c", at::randn({2, 2}).to(at::kDouble)},
                                            {"none", at::empty({0, 4})},
                                            {"part", at::randn({4, 6}).narrow(1, 2, 3)}};
  write_safetensors(folder / "x.safetensors", tensors);
  const SafetensorsReader reader(folder / "x.safetensors");
  EXPECT_EQ(reader.names().size(), tensors.size());
  for (const NamedTensor& tensor : tensors) {
    const at::Tensor back = reader.read(tensor.name);
    EXPECT_EQ(back.scalar_type(), tensor.tensor.scalar_type());
    EXPECT_TRUE(at::equal(back, tensor.tensor)) << tensor.name;
  }
}

TEST(Safetensors, EveryFlippedBitOfDataIsFound) {
  const WorkFolder folder;
  const fs::path path = folder / "x.safetensors";
  write_safetensors(path, {{"a", at::randn({8})}});
  const auto size = static_cast<i64>(fs::file_size(path));
  for (i64 position = size - 32; position < size; ++position) {
    flip_byte(path, position);
    EXPECT_NE(error_of([&] { SafetensorsReader(path).read("a"); }).find("a is damaged"), std::string::npos);
    flip_byte(path, position);
  }
  EXPECT_EQ(error_of([&] { SafetensorsReader(path).read("a"); }), "no error");
}

TEST(Safetensors, AMappedTensorIsComparedWithItsChecksum) {
  const WorkFolder folder;
  const fs::path path = folder / "x.safetensors";
  const at::Tensor a = at::randn({8});
  write_safetensors(path, {{"a", a}});
  EXPECT_TRUE(at::equal(SafetensorsReader(path).map("a"), a));
  flip_byte(path, static_cast<i64>(fs::file_size(path)) - 5);
  EXPECT_NE(error_of<IoError>([&] { SafetensorsReader(path).map("a"); }).find("a is damaged: got checksum"),
            std::string::npos);
}

TEST(Safetensors, EveryCutIsFound) {
  const WorkFolder folder;
  const fs::path path = folder / "x.safetensors";
  write_safetensors(path, {{"a", at::randn({8})}});
  const auto size = static_cast<i64>(fs::file_size(path));
  for (i64 length = size - 1; length >= 0; length -= 3) {
    fs::resize_file(path, static_cast<std::uintmax_t>(length));
    EXPECT_NE(error_of([&] { SafetensorsReader(path).read("a"); }), "no error") << length;
  }
}

/// Replaces a text of the header by one of the same length.
void replace_in_file(const fs::path& path, const std::string& from, const std::string& to) {
  std::string text = read_text(path, 1 << 20);
  const std::size_t at = text.find(from);
  ASSERT_NE(at, std::string::npos);
  ASSERT_EQ(from.size(), to.size());
  write_text(path, text.replace(at, from.size(), to));
}

TEST(Safetensors, AChecksumWhoseNameWasChangedIsFound) {
  const WorkFolder folder;
  const fs::path path = folder / "x.safetensors";
  write_safetensors(path, {{"a", at::randn({8})}, {"b", at::randn({8})}});
  replace_in_file(path, "\"checksum a\"", "\"checksum c\"");
  EXPECT_EQ(error_of<IoError>([&] { SafetensorsReader reader(path); }),
            fmt::format("[{}] is damaged: there is a checksum of c, and no such tensor", path.string()));
  replace_in_file(path, "\"checksum c\"", "\"chocksum a\"");
  EXPECT_EQ(error_of<IoError>([&] { SafetensorsReader reader(path); }),
            fmt::format("[{}] is damaged: a has no checksum, expected one of every tensor", path.string()));
}

TEST(Safetensors, AFileOfAnotherProgramNeedsNoChecksums) {
  const WorkFolder folder;
  const fs::path path = folder / "x.safetensors";
  write_safetensors(path, {{"a", at::ones({2})}});
  replace_in_file(path, "\"checksum a\"", "\"a checksum\"");
  EXPECT_TRUE(at::equal(SafetensorsReader(path).read("a"), at::ones({2})));
  EXPECT_NE(error_of<IoError>([&] { SafetensorsReader(path, Checksums::kOfAll); }).find("a has no checksum"),
            std::string::npos);
}

/// While it lives no file of this process may grow beyond `bytes`: writes fail as on a full disk.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit small{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &small);
  }
  ~FullDisk() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST(Safetensors, AFullDiskIsAWriteErrorAndLeavesNothing) {
  const WorkFolder folder;
  std::string error;
  {
    const FullDisk full(100);
    error = error_of<WriteError>([&] { write_safetensors(folder / "x", {{"a", at::ones({2})}}); });
  }
  EXPECT_NE(error.find("x] cannot write: "), std::string::npos) << error;
  EXPECT_TRUE(folder.contents().empty());
}

// --- checkpoints ---

TEST(Checkpoint, AResumedRunEndsBitEqualToAnUndisturbedOne) {
  for (const char* strategy : {"zebra", "ep", "single"}) {
    const WorkFolder whole_folder, cut_folder;
    const TinyRun::End whole = TinyRun(whole_folder.path(), {{"strategy", strategy}}).run(Checkpoints::kOff);
    // Stopped after three steps: a learning-rate schedule over six, of which three are done.
    TinyRun cut(cut_folder.path(), {{"strategy", strategy}});
    cut.run();
    EXPECT_EQ(cut.steps(), (std::vector<i64>{6, 4}));
    fs::remove_all(cut.checkpoints() / "step-00000006");
    const TinyRun::End resumed = cut.run();
    EXPECT_EQ(resumed.outcome.first_step, 4);
    ASSERT_EQ(resumed.outcome.records.size(), 2U);
    EXPECT_EQ(resumed.outcome.records[0].step, 5);
    for (std::size_t i = 0; i < 2; ++i) {
      EXPECT_EQ(resumed.outcome.records[i].loss, whole.outcome.records[4 + i].loss);
    }
    expect_equal(resumed.values, whole.values);
  }
}

TEST(Checkpoint, GoesOnWithAnotherStrategyAndAnotherNumberOfDevices) {
  const WorkFolder folder, whole_folder;
  const TinyRun::End whole = TinyRun(whole_folder.path()).run(Checkpoints::kOff);
  TinyRun(folder.path(), {{"strategy", "zebra"}}).run();
  for (const char* strategy : {"ep", "dist-ep", "single"}) {
    fs::remove_all(TinyRun(folder.path()).checkpoints() / "step-00000006");
    const TinyRun::End resumed =
        TinyRun(folder.path(), {{"strategy", strategy}, {"checkpoint.keep", "9"}}).run();
    EXPECT_EQ(resumed.outcome.first_step, 4);
    EXPECT_LT(worst_difference(resumed.values, whole.values), 1e-5) << strategy;
  }
  // Without the moments the same steps lead elsewhere: the comparison above can fail.
  EXPECT_GT(worst_difference(TinyRun(folder.path(), {{"train.steps", "4"}}).run(Checkpoints::kOff).values,
                             whole.values),
            1e-4);
}

TEST(Checkpoint, LowPrecisionKeepsItsMasters) {
  const WorkFolder folder, whole_folder;
  const std::vector<std::pair<std::string, std::string>> bf16 = {{"plan.expert_dtype", "bf16"}};
  const TinyRun::End whole = TinyRun(whole_folder.path(), bf16).run(Checkpoints::kOff);
  TinyRun cut(folder.path(), bf16);
  cut.run();
  fs::remove_all(cut.checkpoints() / "step-00000006");
  expect_equal(cut.run().values, whole.values);
}

/// Written by plans that divide the state otherwise, or not at all. Zebra has one backward visit of each.
TEST(Checkpoint, PartsOfAShardedStateMakeAWhole) {
  constexpr const char* kResidences[] = {"whole", "optimizer", "weights"};
  for (const char* dtype : {"fp32", "bf16"}) {
    const auto run = [&](const fs::path& folder, const std::string& sharded) {
      TinyRun made(folder.string(), {{"strategy", "zebra"},
                                     {"plan.shard_optimizer", sharded == "optimizer" ? "true" : "false"},
                                     {"plan.shard_weights", sharded == "weights" ? "true" : "false"},
                                     {"plan.attention_dtype", dtype},
                                     {"plan.expert_dtype", dtype}});
      fs::remove_all(made.checkpoints() / "step-00000006");
      return made.run();
    };
    const WorkFolder whole_folder;
    const TinyRun::End whole = run(whole_folder.path(), "whole");
    for (const char* first : kResidences) {
      for (const char* then : kResidences) {
        const WorkFolder folder;
        run(folder.path(), first);
        const TinyRun::End resumed = run(folder.path(), then);
        EXPECT_EQ(resumed.outcome.first_step, 4) << first << " " << then;
        expect_equal(resumed.values, whole.values);
      }
    }
  }
}

TEST(Checkpoint, AMissingPartOfAShardedOptimizerIsNamed) {
  const WorkFolder folder;
  TinyRun made(folder.path(), {{"strategy", "ep"}, {"plan.shard_optimizer", "true"}});
  CheckpointShard shard;
  Session session(made.model, made.cluster, made.plan, {});
  collect_tensors(session.states(), shard);
  shard.config = to_hf(made.model);
  std::erase_if(shard.optimizer, [](const OutTensor& tensor) {
    const std::string& name = tensor.head.name;
    return name.starts_with("model.embed_tokens.weight.exp_avg@") && !name.ends_with("@0");
  });
  write_checkpoint(folder / "c", shard, 1);
  const std::vector<FoundCheckpoint> found = find_checkpoints(folder / "c", kIgnore);
  ASSERT_EQ(found.size(), 1U);
  const std::string error =
      error_of<IoError>([&] { load_checkpoint(found[0], made.model, session.states()); });
  EXPECT_NE(error.find("model.embed_tokens.weight.exp_avg: its pieces hold elements 0 to "),
            std::string::npos)
      << error;
}

TEST(Checkpoint, AFinishedRunHasNothingLeftToDo) {
  const WorkFolder folder;
  TinyRun rig(folder.path());
  const TinyRun::End first = rig.run();
  const TinyRun::End again = rig.run();
  EXPECT_EQ(again.outcome.first_step, 6);
  EXPECT_TRUE(again.outcome.records.empty());
  expect_equal(again.values, first.values);
}

TEST(Checkpoint, ADamagedOneIsPassedOverAndNamed) {
  const WorkFolder folder;
  TinyRun rig(folder.path());
  const TinyRun::End whole = rig.run();
  const fs::path newest = rig.checkpoints() / "step-00000006";
  for (const char* file : {"model.safetensors", "optimizer.safetensors", "checkpoint.json"}) {
    const auto size = static_cast<i64>(fs::file_size(newest / file));
    for (const i64 position : {size / 3, size - 100}) {
      flip_byte(newest / file, position);
      const TinyRun::End resumed = rig.run();
      EXPECT_EQ(resumed.outcome.first_step, 4) << file << " " << position;
      ASSERT_FALSE(resumed.outcome.notes.empty());
      EXPECT_NE(resumed.outcome.notes[0].find("step-00000006"), std::string::npos)
          << resumed.outcome.notes[0];
      expect_equal(resumed.values, whole.values);  // and has been written anew
      EXPECT_EQ(rig.steps(), (std::vector<i64>{6, 4}));
    }
  }
}

TEST(Checkpoint, AChecksumThatLostItsNameIsDamage) {
  const WorkFolder folder;
  TinyRun rig(folder.path());
  rig.run();
  replace_in_file(rig.checkpoints() / "step-00000006" / "model.safetensors", "\"checksum model.",
                  "\"chocksum model.");
  const TinyRun::End resumed = rig.run();
  EXPECT_EQ(resumed.outcome.first_step, 4);
  ASSERT_FALSE(resumed.outcome.notes.empty());
  EXPECT_NE(resumed.outcome.notes[0].find("has no checksum"), std::string::npos) << resumed.outcome.notes[0];
}

TEST(Checkpoint, NumbersThatNoRunWritesAreDamage) {
  const WorkFolder folder;
  TinyRun rig(folder.path());
  rig.run();
  const fs::path newest = rig.checkpoints() / "step-00000006";
  const Json whole = read_json(newest / "checkpoint.json");
  const auto error_with = [&](const char* key, const Json& value) {
    Json json = whole;
    json[key] = value;
    json.erase("checksum");
    const std::string text = json.dump();
    json["checksum"] = fmt::format("{:016x}", checksum(text.data(), text.size()));
    write_text(newest / "checkpoint.json", json.dump());
    return error_of<IoError>([&] { read_checkpoint(newest); });
  };
  EXPECT_EQ(error_with("step", 6), "no error");
  const auto is_told = [](const std::string& e) { return e != "no error" && e.find("json.") == e.npos; };
  const Json text = "x";
  for (const auto& [key, value] :
       std::vector<std::pair<const char*, Json>>{{"step", -1},
                                                 {"step", 1e300},
                                                 {"step", text},
                                                 {"sequences", 1.5},
                                                 {"seed", -1},
                                                 {"text", "no number"},
                                                 {"text", 3},
                                                 {"skipped", 7},
                                                 {"loss_scale", 0},
                                                 {"loss_scale", text},
                                                 {"good_steps", -1},
                                                 {"files", 3},
                                                 {"files", {{"model.safetensors", text}}},
                                                 {"version", 1},
                                                 {"run", 2}}) {
    EXPECT_TRUE(is_told(error_with(key, value))) << key << " " << value.dump();
  }
  for (const char* whole_file : {"[]", "{\"checksum\": 3}", "3"}) {
    write_text(newest / "checkpoint.json", whole_file);
    EXPECT_TRUE(is_told(error_of<IoError>([&] { read_checkpoint(newest); }))) << whole_file;
  }
}

TEST(Checkpoint, WhenNoneCanBeReadTheRunDoesNotBeginAnewByItself) {
  const WorkFolder folder;
  TinyRun rig(folder.path());
  rig.run();
  for (const char* step : {"step-00000004", "step-00000006"}) {
    flip_byte(rig.checkpoints() / step / "model.safetensors", 5000);
  }
  EXPECT_NE(error_of([&] { rig.run(); }).find("none can be read"), std::string::npos);
  rig.job.checkpoint.resume = false;
  EXPECT_EQ(rig.run().outcome.first_step, 0);
}

TEST(Checkpoint, UnfinishedOnesAreNeitherUsedNorKept) {
  const WorkFolder folder;
  TinyRun rig(folder.path());
  rig.run();
  const fs::path unfinished = rig.checkpoints() / ".step-00000008.0.unfinished";
  fs::rename(rig.checkpoints() / "step-00000006", unfinished);
  EXPECT_EQ(rig.run().outcome.first_step, 4);
  EXPECT_FALSE(fs::exists(unfinished));
}

TEST(Checkpoint, AnotherModelIsRefusedByTheKeyThatDiffers) {
  const WorkFolder folder;
  TinyRun(folder.path()).run();
  TinyRun other(folder.path(), {{"model", "tiny-qwen3"}});
  EXPECT_NE(error_of([&] { other.run(); }).find("is of another model: "), std::string::npos);
}

TEST(Checkpoint, AFullDiskIsOneErrorAndLeavesTheOlderOnes) {
  const WorkFolder folder;
  TinyRun rig(folder.path());
  rig.run();
  rig.job.train.steps = 8;
  for (const rlim_t bytes : {rlim_t{100}, rlim_t{20000}}) {
    std::string error;
    {
      const FullDisk full(bytes);
      error = error_of([&] { rig.run(); });
    }
    EXPECT_NE(error.find("cannot write"), std::string::npos) << error;
    EXPECT_NE(error.find("step-00000008"), std::string::npos) << error;
    EXPECT_EQ(rig.steps(), (std::vector<i64>{6, 4}));
    EXPECT_EQ(std::distance(fs::directory_iterator(rig.checkpoints()), {}), 2);  // nothing unfinished is left
  }
  EXPECT_EQ(rig.run().outcome.first_step, 6);
}

TEST(Checkpoint, AFolderThatCannotBeWrittenIsOneError) {
  const WorkFolder folder;
  folder.file("checkpoints", "a file where the folder should be");
  EXPECT_NE(error_of([&] { TinyRun(folder.path()).run(); }).find("cannot create folder"), std::string::npos);
}

TEST(Checkpoint, SeveralRanksWriteOneFolder) {
  const WorkFolder folder;
  std::vector<CheckpointShard> shards(2);
  for (i32 r = 0; r < 2; ++r) {
    CheckpointShard& shard = shards[static_cast<std::size_t>(r)];
    shard.info.step = 3;
    shard.rank = r;
    shard.num_ranks = 2;
    shard.model = {kept_tensor(fmt::format("w{}", r), at::full({4}, r + 1.0))};
  }
  std::thread first([&] { write_checkpoint(folder.path(), shards[0], 2); });
  write_checkpoint(folder.path(), shards[1], 2);
  first.join();
  const std::vector<FoundCheckpoint> found = find_checkpoints(folder.path(), kIgnore);
  ASSERT_EQ(found.size(), 1U);
  const Json index = read_json(found[0].path / "model.safetensors.index.json");
  EXPECT_EQ(index["weight_map"]["w1"], "model-00002-of-00002.safetensors");
  EXPECT_EQ(
      SafetensorsReader(found[0].path / "model-00002-of-00002.safetensors").read("w1")[0].item<double>(), 2);
}

/// As the second attention device of zebra over four processes.
TEST(Checkpoint, OfARankWithoutParametersIsReadAsAModelFolder) {
  const WorkFolder folder;
  for (const i32 rank : {1, 0}) {  // rank 0 waits for the others
    CheckpointShard shard;
    shard.info.step = 3;
    shard.rank = rank, shard.num_ranks = 2;
    if (rank == 0) shard.model = {kept_tensor("w", at::ones({4}))};
    write_checkpoint(folder.path(), shard, 2);
  }
  const fs::path path = find_checkpoints(folder.path(), kIgnore).at(0).path;
  EXPECT_EQ(error_of([&] { EXPECT_EQ(HfFolder(path).heads().size(), 1U); }), "no error");
  write_safetensors(path / "model-00002-of-00002.safetensors", {{"v", at::ones({4})}});
  EXPECT_NE(
      error_of([&] { HfFolder{path}; }).find("model-00002-of-00002.safetensors is not part of the model"),
      std::string::npos);
}

/// What has happened to a file of a folder, in order, as inotify tells it.
std::vector<std::uint32_t> events_of(int watch, const std::string& name) {
  std::vector<std::uint32_t> events;
  alignas(inotify_event) char bytes[1 << 16];
  for (ssize_t size; (size = ::read(watch, bytes, sizeof bytes)) > 0;) {
    for (const char* at = bytes; at < bytes + size;) {
      const auto* event = reinterpret_cast<const inotify_event*>(at);
      if (event->len > 0 && name == event->name) events.push_back(event->mask);
      at += sizeof(inotify_event) + event->len;
    }
  }
  return events;
}

/// Rank 0 takes a rank's listing away the moment it appears: the rank that wrote it must be done with it.
TEST(Checkpoint, AListingIsNotTouchedAfterItIsSeen) {
  const WorkFolder folder;
  CheckpointShard shard;
  shard.rank = 1, shard.num_ranks = 2, shard.attempt = "a";
  shard.model = {kept_tensor("w", at::ones({4}))};
  const std::string unfinished = folder / ".step-00000000.a.unfinished";
  fs::create_directories(unfinished);
  const int watch = ::inotify_init1(IN_NONBLOCK);
  ASSERT_GE(::inotify_add_watch(watch, unfinished.c_str(), IN_ALL_EVENTS), 0);
  write_checkpoint(folder.path(), shard, 1);
  EXPECT_EQ(events_of(watch, "shard-00002.json"), std::vector<std::uint32_t>{IN_MOVED_TO});
  ::close(watch);
}

}  // namespace
}  // namespace hetermoe
