#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "hetermoe/train/checkpoint/checkpoint.h"
#include "tests/support/work_folder.h"

// How much of a checkpoint is in memory while it is written.
namespace hetermoe {
namespace {

CheckpointShard part_of_two(i32 rank) {
  CheckpointShard shard;
  shard.info.step = 1;
  shard.rank = rank, shard.num_ranks = 2;
  shard.model = {kept_tensor(fmt::format("w{}", rank), at::ones({4}))};
  return shard;
}

TEST(CheckpointWriter, CopiesTensorsOnlyWhenTheCheckpointBeforeIsWritten) {
  const WorkFolder folder;
  CheckpointWriter writer(folder.path(), {});
  writer.write(part_of_two(0));  // is written when the other part is there
  std::thread other([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    write_checkpoint(folder.path(), part_of_two(1), 2);
  });
  bool is_written = false;
  CheckpointShard next;
  next.info.step = 2;
  next.model = {{{"w", at::kFloat, {4}}, [&] {
                   is_written = std::filesystem::exists(folder.path() / "step-00000001");
                   return at::ones({4});
                 }}};
  writer.write(std::move(next));
  writer.finish();
  other.join();
  EXPECT_TRUE(is_written);
  EXPECT_EQ(find_checkpoints(folder.path(), [](const std::string&) {}).size(), 2U);
}

/// Tensors that count how many of them there are.
struct CountedTensors {
  i64 now = 0, most = 0;
  OutTensor tensor(const std::string& name) {
    return {{name, at::kFloat, {4}}, [this] {
              most = std::max(most, ++now);
              auto* values = new float[4]{1, 2, 3, 4};
              return at::from_blob(
                  values, {4}, [this, values](void*) { --now, delete[] values; }, at::kFloat);
            }};
  }
};

TEST(CheckpointWriter, NoMoreThanOneTensorIsCopiedWhereTheTrainingWaits) {
  const WorkFolder folder;
  CountedTensors counted;
  CheckpointShard shard;
  shard.info.step = 3;
  for (const char* name : {"a", "b", "c"}) shard.model.push_back(counted.tensor(name));
  shard.optimizer = {counted.tensor("a.exp_avg")};
  CheckpointOptions options;
  options.async = false;
  CheckpointWriter(folder.path(), options).write(shard);
  EXPECT_EQ(counted.most, 1);
  EXPECT_EQ(counted.now, 0);
  options.async = true;
  CheckpointWriter beside(folder.path(), options);
  shard.info.step = 4;
  beside.write(std::move(shard));
  beside.finish();
  EXPECT_EQ(counted.most, 4);  // the control
  EXPECT_EQ(counted.now, 0);
}

TEST(Safetensors, TensorsInTurnAreTheFileOfAllAtOnce) {
  const WorkFolder folder;
  const std::vector<NamedTensor> tensors = {{"a", at::randn({3, 5})},
                                            {"b", at::randn({7}).to(at::kBFloat16)},
                                            {"none", at::empty({0, 4})},
                                            {"part", at::randn({4, 6}).narrow(1, 2, 3)}};
  std::vector<OutTensor> in_turn;
  for (const NamedTensor& tensor : tensors) in_turn.push_back(kept_tensor(tensor.name, tensor.tensor));
  write_safetensors(folder / "all", tensors);
  write_in_turn(folder / "turn", in_turn);
  EXPECT_EQ(read_text(folder / "turn"), read_text(folder / "all"));
}

}  // namespace
}  // namespace hetermoe
