#pragma once
#include <exception>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "hetermoe/exec/device_state.h"
#include "hetermoe/train/checkpoint/balancer_history.h"
#include "hetermoe/train/checkpoint/loss_scale.h"
#include "hetermoe/train/job/checkpoint_options.h"
#include "hetermoe/weights/safetensors.h"

// A checkpoint is a folder step-00000120 that knows no devices: logical tensors under their Hugging Face
// names (model.safetensors beside a config.json, so other programs load it as it is), the optimizer's moments
// beside them, and checkpoint.json. It is written below another name, synced and renamed: a folder with that
// name is complete.
namespace hetermoe {

/// The data of a checkpoint beside its tensors.
struct CheckpointInfo {
  i64 step = 0;       ///< optimizer steps done
  i64 sequences = 0;  ///< training sequences used so far: the next one has this index
  std::string run;    ///< names the run that wrote it and all that went on from it; empty: an older version
  u64 seed = 0;
  u64 text = 0;  ///< checksum of the training text
  std::string version;
  Json job;         ///< resolved configuration
  Json plan;        ///< in force when it was written; null: an older version
  i64 skipped = 0;  ///< steps of `step` that changed nothing
  /// Updates before the optimizer's state was last reset: it has seen step - skipped - forgotten ones.
  i64 forgotten = 0;
  LossScale::State loss_scale{};
  BalancerHistory balancer{};
};

/// The part of a checkpoint that one process writes.
struct CheckpointShard {
  CheckpointInfo info;
  Json config;  ///< config.json of the model
  std::vector<OutTensor> model, optimizer;
  i32 rank = 0, num_ranks = 1;
  std::string attempt =
      "0";  ///< the same for all ranks of a run and for no other run: names the unfinished folder
};

/// Adds what the devices of this process speak for, each tensor copied to the host in its turn. The devices
/// must live, and train no step, until that is done.
void collect_tensors(const std::vector<DeviceState*>& states, CheckpointShard& shard);
/// Copies all tensors of a shard now, so that the training may go on.
void keep_copies(CheckpointShard& shard);
/// Bytes of the files that will hold the tensors of a shard.
Bytes bytes_of(const CheckpointShard& shard);

/// How rank 0 waits for the parts of the others: without a limit, as long as they show that they are alive.
struct ShardWait {
  Seconds silence = 300;                 ///< a rank without a sign of life for so long is dead
  Seconds beat = 1;                      ///< a rank that writes gives a sign so often
  std::function<void()> before_writing;  ///< for tests
};

/// Writes this rank's part; rank 0 then waits for the others' and publishes. Keeps the newest `keep` complete
/// ones of this run. Throws IoError; then nothing of an older checkpoint has changed.
void write_checkpoint(const std::filesystem::path& folder, const CheckpointShard& shard, i64 keep,
                      const ShardWait& wait = {});

struct FoundCheckpoint {
  std::filesystem::path path;
  CheckpointInfo info;
  std::string checksum;  ///< of checkpoint.json
  Json files;            ///< their bytes by name
};
/// Throws IoError when it is not complete or its checkpoint.json is damaged.
FoundCheckpoint read_checkpoint(const std::filesystem::path& path);

/// Complete checkpoints, newest first. `on_broken` hears why a folder that looks like one was passed over.
std::vector<FoundCheckpoint> find_checkpoints(const std::filesystem::path& folder,
                                              const std::function<void(const std::string&)>& on_broken);

/// Fills all states from a checkpoint, whatever plan, devices and processes wrote it. Throws IoError when
/// bytes are damaged, ConfigError when it is of another model.
void load_checkpoint(const FoundCheckpoint& checkpoint, const ModelConfig& model,
                     const std::vector<DeviceState*>& states);

/// Moves all checkpoints of a folder into before-RUN beside them, where no run looks: for a run of this name
/// that begins anew. Returns what the user should know of it, empty when there were none. Throws IoError.
std::string set_others_aside(const std::filesystem::path& folder, const std::string& run);

/// Repairs a folder after a run was ended while it wrote: a checkpoint that had no name for a moment gets it
/// back, and unfinished or outdated files are removed. Only for a folder to which no other process writes.
void recover_checkpoints(const std::filesystem::path& folder);

/// Writes checkpoints beside the training, one at a time.
class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path folder, const CheckpointOptions& options);
  ~CheckpointWriter();
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  /// Waits for the one before, whose error it throws, and only then makes tensors: no two checkpoints are in
  /// memory, and not even one where it is not written beside the training.
  void write(CheckpointShard shard);
  /// Waits for the one that is being written. Throws its error.
  void finish();

 private:
  std::filesystem::path folder_;
  CheckpointOptions options_;
  std::thread thread_;
  std::exception_ptr error_;
};

}  // namespace hetermoe
