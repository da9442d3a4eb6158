#include "hetermoe/train/checkpoint/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <fstream>
#include <mutex>
#include <set>

#include "hetermoe/base/index.h"
#include "hetermoe/train/checkpoint/checkpoint_archive.h"
#include "hetermoe/train/checkpoint/checkpoint_folder.h"
#include "hetermoe/train/checkpoint/shared_folder.h"
#include "hetermoe/train/job/lora.h"
#include "hetermoe/weights/hf_weights.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

constexpr i64 kFormat = 1;
constexpr const char* kInfoFile = "checkpoint.json";

std::string part_name(const char* what, i32 rank, i32 num_ranks) {
  return num_ranks == 1 ? fmt::format("{}.safetensors", what)
                        : fmt::format("{}-{:05}-of-{:05}.safetensors", what, rank + 1, num_ranks);
}

std::string shard_name(i32 rank) { return fmt::format("shard-{:05}.json", rank + 1); }

void write_synced(const fs::path& path, const std::string& text) {
  write_text(path, text);
  sync_to_disk(path);
}

/// What rank 0 must know of every rank's files.
Json shard_listing(const fs::path& folder, const CheckpointShard& shard) {
  Json json = {{"files", Json::object()}, {"weights", Json::array()}};
  for (const char* what : {"model", "optimizer"}) {
    const std::string name = part_name(what, shard.rank, shard.num_ranks);
    json["files"][name] = fs::file_size(folder / name);
  }
  for (const OutTensor& tensor : shard.model) json["weights"].push_back(tensor.head.name);
  return json;
}

std::string beat_name(i32 rank) { return fmt::format("alive-{:05}", rank + 1); }

/// While it lives, a file beside the part that a rank writes grows: the rank is alive, however long it takes.
class Beat {
 public:
  Beat(fs::path path, Seconds pause)
      : path_(std::move(path)), thread_([this, pause](const std::stop_token& stop) { run(stop, pause); }) {}
  ~Beat() {
    thread_.request_stop();
    thread_.join();
    std::error_code code;
    fs::remove(path_, code);
  }
  Beat(const Beat&) = delete;
  Beat& operator=(const Beat&) = delete;

 private:
  void run(const std::stop_token& stop, Seconds pause) const {
    std::mutex mutex;
    std::condition_variable_any ended;
    std::unique_lock lock(mutex);
    while (!stop.stop_requested()) {
      // A beat that cannot be written is one that rank 0 does not see.
      std::ofstream(path_, std::ios::app) << '.';
      ended.wait_for(lock, stop, std::chrono::duration<double>(pause), [] { return false; });
    }
  }

  fs::path path_;
  std::jthread thread_;  // last: it uses the path
};

/// The part of a rank, as soon as it is whole. Throws IoError when the rank shows no sign of life for too
/// long.
Json wait_for_shard(const fs::path& folder, i32 rank, Seconds silence) {
  const fs::path part = folder / shard_name(rank), beat = folder / beat_name(rank);
  std::error_code code;
  std::uintmax_t beats = 0;
  for (;;) {
    const bool alive_or_done = wait_until(
        [&] {
          if (fs::exists(part)) return true;
          if (!fs::exists(folder)) fail<IoError>(folder.string(), "another rank could not write its part");
          const std::uintmax_t now = fs::file_size(beat, code);
          return !code && now != std::exchange(beats, now);
        },
        silence);
    if (fs::exists(part)) return read_json(part);
    if (alive_or_done) continue;
    fail<IoError>(
        folder.string(),
        "rank {} has not written its part and shows no sign of life for {:.3g} s. Does it still run, "
        "and see this folder?",
        rank, silence);
  }
}

std::vector<Json> wait_for_shards(const fs::path& folder, i32 num_ranks, Seconds silence) {
  std::vector<Json> shards;
  for (i32 r = 0; r < num_ranks; ++r) shards.push_back(wait_for_shard(folder, r, silence));
  return shards;
}

/// So that other programs find the tensors of a model in several files.
void write_index(const fs::path& folder, const std::vector<Json>& shards, i32 num_ranks) {
  Json map = Json::object();
  for (std::size_t r = 0; r < shards.size(); ++r) {
    for (const std::string name : shards[r]["weights"])
      map[name] = part_name("model", static_cast<i32>(r), num_ranks);
  }
  write_synced(folder / "model.safetensors.index.json",
               Json{{"metadata", Json::object()}, {"weight_map", map}}.dump(1) + "\n");
}

void write_info(const fs::path& folder, const CheckpointShard& shard, const std::vector<Json>& shards) {
  const CheckpointInfo& info = shard.info;
  Json json = {{"format", kFormat},
               {"version", info.version},
               {"step", info.step},
               {"sequences", info.sequences},
               {"run", info.run},
               {"seed", info.seed},
               {"text", fmt::format("{:016x}", info.text)},
               {"config", shard.config},
               {"job", info.job},
               {"plan", info.plan},
               {"skipped", info.skipped},
               {"forgotten_updates", info.forgotten},
               {"loss_scale", info.loss_scale.value},
               {"good_steps", info.loss_scale.good_steps},
               {"files", Json::object()}};
  const BalancerHistory& history = info.balancer;
  if (!history.loads.empty()) json["expert_loads"] = history.loads;
  if (!history.slowness.empty()) json["device_slowness"] = history.slowness;
  if (!history.use.empty())
    json["domain_use"] = {{"copies", history.use.copies}, {"sequences", history.use.sequences}};
  for (const Json& listing : shards) json["files"].update(listing["files"]);
  json["checksum"] = checksum_of(json);
  write_synced(folder / kInfoFile, json.dump(1) + "\n");
}

/// A checkpoint that cannot be understood is a file that cannot be read: the run looks at the one before.
template <class F>
auto with_io_errors(const fs::path& path, F&& read) {
  try {
    return read();
  } catch (const ConfigError& error) {
    throw IoError(error.what());
  } catch (const Error&) {
    throw;
  } catch (const Json::exception&) {
    fail<IoError>(path.string(), "is damaged: a value is missing, or of another type than runs write");
  } catch (const std::exception& error) {
    fail<IoError>(path.string(), "is damaged: {}", error.what());
  }
}

constexpr double kMostCount = 1e15;  ///< of steps and sequences

Json read_info(const fs::path& folder) {
  Json json = read_json(folder / kInfoFile);
  const std::string where = (folder / kInfoFile).string();
  const std::string sum = json.value("checksum", "");
  json.erase("checksum");
  if (sum != checksum_of(json))
    fail<IoError>(where, "is damaged: got checksum {}, expected {}", checksum_of(json), sum);
  if (json.value("format", i64{0}) != kFormat) {
    fail<IoError>(where, "got format {}, expected {}", json.value("format", i64{0}), kFormat);
  }
  for (const auto& [name, size] : json.at("files").items()) {
    std::error_code code;
    const auto got = fs::file_size(folder / name, code);
    if (code || got != size.get<std::uintmax_t>()) {
      fail<IoError>((folder / name).string(), "is {}, expected {} bytes",
                    code ? "missing" : fmt::format("{} bytes", got), size.get<std::uintmax_t>());
    }
  }
  return json;
}

/// Zeros where the run that wrote the checkpoint kept none on this place.
void load_lost(const Archive& archive, const LogicalTensor& tensor, PlaceId place) {
  if (!tensor.lost.defined()) return;
  const std::string name = lost_name(tensor.name, place);
  if (archive.has(name))
    tensor.lost.copy_(archive.read(name, tensor.lost.sizes()));
  else
    tensor.lost.zero_();
}

/// Adapters of a checkpoint that the run does not have would be lost without a word. Those of weights on a
/// host are on its devices. rank: of the checkpoint's adapters, 0 = it has none, or does not say.
void check_adapters(const Archive& archive, const std::vector<DeviceState*>& states, i64 rank) {
  std::set<std::string> adapters, matrices;
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      if (!is_adapter(tensor.name)) {
        if (tensor.name.ends_with(".weight")) matrices.insert(tensor.name);
        continue;
      }
      adapters.insert(tensor.name);
      const i64 own = tensor.shape[0];
      if (rank == 0 || own == rank || !is_lora_a(tensor.name) || !archive.has(tensor.name)) continue;
      fail<ConfigError>(
          "train.lora.rank",
          "got {}, but the adapters of the checkpoint have rank {}. Give that rank, or begin anew with "
          "--checkpoint.resume false and another output folder",
          own, rank);
    }
  }
  for (const std::string& matrix : matrices) {
    const std::string adapter = lora_a_name(matrix);
    if (adapters.contains(adapter) || !archive.has(adapter)) continue;
    fail<ConfigError>(
        "train.lora",
        "gives no adapter to {}, which had one in the run that wrote the checkpoint. Give the same "
        "train.lora (rank, targets), or begin anew with --checkpoint.resume false and another output "
        "folder",
        matrix);
  }
}

void load_tensor(const Archive& archive, const LogicalTensor& tensor) {
  // A low-precision value is a rounding of its master, which is the parameter.
  const std::string master = tensor.name + ".master";
  const std::string parameter = archive.has(master) ? master : tensor.name;
  const at::IntArrayRef sizes = tensor.shape;
  check_adapter_is_there(tensor.name, archive.has(parameter));
  const auto copy_into = [&](const at::Tensor& target, const at::Tensor& whole) {
    target.copy_(kept_of(tensor, whole));
  };
  set_parameter(tensor, archive.read(parameter, sizes));
  // A run whose updates lag goes on with the weights that its next step would have used.
  const std::string published = tensor.name + ".published";
  if (tensor.published.defined() && archive.has(published))
    copy_into(tensor.published, archive.read(published, sizes));
  if (!tensor.exp_avg.defined()) return;
  if (!archive.has(tensor.name + ".exp_avg")) {
    fail<ConfigError>(
        "train.freeze",
        "does not freeze {}, which was frozen in the run that wrote the checkpoint: there are no "
        "moments of it. Freeze it, or begin anew with --checkpoint.resume false and another "
        "output folder",
        tensor.name);
  }
  copy_into(tensor.exp_avg, archive.read(tensor.name + ".exp_avg", sizes));
  copy_into(tensor.exp_avg_sq, archive.read(tensor.name + ".exp_avg_sq", sizes));
}

}  // namespace

void write_checkpoint(const fs::path& folder, const CheckpointShard& shard, i64 keep, const ShardWait& wait) {
  const fs::path unfinished =
      folder / fmt::format(".{}.{}.unfinished", checkpoint_name(shard.info.step), shard.attempt);
  std::error_code code;
  fs::create_directories(unfinished, code);
  if (code) fail<IoError>(unfinished.string(), "cannot create folder: {}", code.message());
  try {
    {
      const Beat beat(unfinished / beat_name(shard.rank), wait.beat);
      if (wait.before_writing) wait.before_writing();
      write_in_turn(unfinished / part_name("model", shard.rank, shard.num_ranks), shard.model);
      write_in_turn(unfinished / part_name("optimizer", shard.rank, shard.num_ranks), shard.optimizer);
    }
    // Rank 0 removes the listing as soon as it sees it, so its writer must not touch it again, not even to
    // sync it. What the listing names is on the disk already.
    write_text(unfinished / shard_name(shard.rank), shard_listing(unfinished, shard).dump() + "\n");
    if (shard.rank != 0) return;
    const std::vector<Json> shards = wait_for_shards(unfinished, shard.num_ranks, wait.silence);
    for (i32 r = 0; r < shard.num_ranks; ++r) fs::remove(unfinished / shard_name(r));
    if (shard.num_ranks > 1) write_index(unfinished, shards, shard.num_ranks);
    write_synced(unfinished / "config.json", shard.config.dump(2) + "\n");
    write_info(unfinished, shard, shards);
    publish_checkpoint(unfinished, folder, shard.info);
    remove_older(folder, keep, shard.info.run);
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(unfinished, code);
    fail<IoError>(unfinished.string(), "cannot write checkpoint: {}", error.code().message());
  } catch (...) {
    fs::remove_all(unfinished, code);
    throw;
  }
}

FoundCheckpoint read_checkpoint(const fs::path& path) {
  return with_io_errors(path, [&] {
    const Json json = read_info(path);
    const std::string where = (path / kInfoFile).string() + " ";
    CheckpointInfo info;
    const auto count = [&](const char* key, i64& out, double most) {
      read_value(json.at(key), out, where + key, between(0, most));
    };
    count("step", info.step, kMostCount);
    count("sequences", info.sequences, kMostCount);
    info.run = json.value("run", "");
    read_value(json.at("seed"), info.seed, where + "seed");
    info.text = std::stoull(json.at("text").get<std::string>(), nullptr, 16);
    info.version = json.at("version").get<std::string>();
    info.job = json.at("job");
    info.plan = json.value("plan", Json());
    if (json.contains("skipped")) count("skipped", info.skipped, real(info.step));
    if (json.contains("forgotten_updates"))
      count("forgotten_updates", info.forgotten, real(info.step - info.skipped));
    if (json.contains("good_steps")) count("good_steps", info.loss_scale.good_steps, kMostCount);
    BalancerHistory& history = info.balancer;
    if (json.contains("expert_loads")) history.loads = json.at("expert_loads");
    if (json.contains("device_slowness")) json.at("device_slowness").get_to(history.slowness);
    if (json.contains("domain_use")) {
      json.at("domain_use").at("copies").get_to(history.use.copies);
      json.at("domain_use").at("sequences").get_to(history.use.sequences);
    }
    if (json.contains("loss_scale"))
      read_value(json.at("loss_scale"), info.loss_scale.value, where + "loss_scale", above(0));
    return FoundCheckpoint{
        .path = path, .info = std::move(info), .checksum = checksum_of(json), .files = json.at("files")};
  });
}

std::vector<FoundCheckpoint> find_checkpoints(const fs::path& folder,
                                              const std::function<void(const std::string&)>& on_broken) {
  std::vector<FoundCheckpoint> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (!entry.path().filename().string().starts_with("step-")) continue;
    try {
      found.push_back(read_checkpoint(entry.path()));
    } catch (const Error& error) {
      on_broken(error.what());
    }
  }
  std::sort(found.begin(), found.end(),
            [](const FoundCheckpoint& a, const FoundCheckpoint& b) { return a.info.step > b.info.step; });
  return found;
}

void load_checkpoint(const FoundCheckpoint& checkpoint, const ModelConfig& model,
                     const std::vector<DeviceState*>& states) {
  const Json info = with_io_errors(checkpoint.path, [&] { return read_info(checkpoint.path); });
  const Json got = info.value("config", Json()), expected = to_hf(model);
  if (got != expected) {
    for (const auto& [key, value] : expected.items()) {
      const Json has = got.is_object() ? got.value(key, Json()) : Json();
      if (has == value) continue;
      fail<ConfigError>(checkpoint.path.string(),
                        "is of another model: {} is {}, expected {}. Give another output folder, or "
                        "--checkpoint.resume false.",
                        key, has.dump(), value.dump());
    }
  }
  const Archive archive(checkpoint.path, info.at("files"));
  check_adapters(archive, states, adapter_rank(checkpoint.info.job));
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      load_tensor(archive, tensor);
      load_lost(archive, tensor, state->device());
    }
    state->store().set_updates(checkpoint.info.step - checkpoint.info.skipped - checkpoint.info.forgotten);
  }
}

}  // namespace hetermoe
