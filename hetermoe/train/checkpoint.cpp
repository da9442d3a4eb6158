#include "hetermoe/train/checkpoint.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <map>

#include "hetermoe/base/checksum.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

constexpr i64 kFormat = 1;
constexpr const char* kInfoFile = "checkpoint.json";
constexpr Seconds kShardTimeout = 600;

std::string folder_name(i64 step) { return fmt::format("step-{:08}", step); }

std::string part_name(const char* what, i32 rank, i32 num_ranks) {
  return num_ranks == 1 ? fmt::format("{}.safetensors", what)
                        : fmt::format("{}-{:05}-of-{:05}.safetensors", what, rank + 1, num_ranks);
}

std::string shard_name(i32 rank) { return fmt::format("shard-{:05}.json", rank + 1); }

std::string sum_of(const Json& json) {
  const std::string text = json.dump();
  return fmt::format("{:016x}", checksum(text.data(), text.size()));
}

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
  for (const NamedTensor& tensor : shard.model) json["weights"].push_back(tensor.name);
  return json;
}

std::vector<Json> wait_for_shards(const fs::path& folder, i32 num_ranks) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::duration<double>(kShardTimeout);
  std::vector<Json> shards;
  while (static_cast<i32>(shards.size()) < num_ranks) {
    const fs::path next = folder / shard_name(static_cast<i32>(shards.size()));
    if (fs::exists(next)) {
      shards.push_back(read_json(next));
      continue;
    }
    if (std::chrono::steady_clock::now() > deadline) {
      fail<IoError>(folder.string(),
                    "rank {} has not written its part within {} s. Do all ranks see this folder?",
                    shards.size(), kShardTimeout);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
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
               {"seed", info.seed},
               {"text", fmt::format("{:016x}", info.text)},
               {"config", shard.config},
               {"job", info.job},
               {"skipped", info.skipped},
               {"loss_scale", info.loss_scale.value},
               {"good_steps", info.loss_scale.good_steps},
               {"files", Json::object()}};
  for (const Json& listing : shards) json["files"].update(listing["files"]);
  json["checksum"] = sum_of(json);
  write_synced(folder / kInfoFile, json.dump(1) + "\n");
}

void publish(const fs::path& unfinished, const fs::path& folder, i64 step) {
  const fs::path target = folder / folder_name(step), old = folder / (".old-" + folder_name(step));
  sync_to_disk(unfinished);
  fs::remove_all(old);
  // A folder of this name is here only when it was damaged and the run went on from an older one.
  if (fs::exists(target)) fs::rename(target, old);
  fs::rename(unfinished, target);
  sync_to_disk(folder);
  fs::remove_all(old);
}

Json read_info(const fs::path& folder) {
  Json json = read_json(folder / kInfoFile);
  const std::string where = (folder / kInfoFile).string();
  const std::string sum = json.value("checksum", "");
  json.erase("checksum");
  if (sum != sum_of(json))
    fail<IoError>(where, "is damaged: got checksum {}, expected {}", sum_of(json), sum);
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

void remove_older(const fs::path& folder, i64 keep) {
  const std::vector<FoundCheckpoint> all = find_checkpoints(folder, [](const std::string&) {});
  for (std::size_t i = static_cast<std::size_t>(keep); i < all.size(); ++i) fs::remove_all(all[i].path);
}

/// The tensors of all files of a checkpoint by name.
class Archive {
 public:
  Archive(const fs::path& folder, const Json& files) : folder_(folder) {
    for (const auto& [name, size] : files.items()) {
      readers_.push_back(std::make_unique<SafetensorsReader>(folder / name));
      for (const std::string& tensor : readers_.back()->names()) where_[tensor] = readers_.back().get();
    }
  }
  bool has(const std::string& name) const { return where_.count(name) > 0; }
  void copy_into(const at::Tensor& target, const std::string& name) const {
    const auto found = where_.find(name);
    if (found == where_.end()) fail<IoError>(folder_.string(), "has no tensor {}", name);
    const at::Tensor tensor = found->second->read(name);
    if (tensor.sizes() != target.sizes()) {
      fail<IoError>(folder_.string(), "{}: got shape [{}], expected [{}]", name,
                    fmt::join(tensor.sizes(), ", "), fmt::join(target.sizes(), ", "));
    }
    target.copy_(tensor);
  }

 private:
  fs::path folder_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  std::map<std::string, const SafetensorsReader*> where_;
};

void load_tensor(const Archive& archive, const LogicalTensor& tensor) {
  // A low-precision value is a rounding of its master, which is the parameter.
  const std::string master = tensor.name + ".master";
  const std::string parameter = archive.has(master) ? master : tensor.name;
  if (tensor.master.defined()) archive.copy_into(tensor.master, parameter);
  archive.copy_into(tensor.value, parameter);
  if (!tensor.exp_avg.defined()) return;
  if (!archive.has(tensor.name + ".exp_avg")) {
    fail<ConfigError>(
        "train.freeze",
        "does not freeze {}, which was frozen in the run that wrote the checkpoint: there are no "
        "moments of it. Freeze it, or begin anew with --checkpoint.resume false and another "
        "output folder",
        tensor.name);
  }
  archive.copy_into(tensor.exp_avg, tensor.name + ".exp_avg");
  archive.copy_into(tensor.exp_avg_sq, tensor.name + ".exp_avg_sq");
}

}  // namespace

void copy_tensors(const std::vector<DeviceState*>& states, const ModelConfig& model, CheckpointShard& shard) {
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) {
      if (!tensor.first_owner) continue;
      shard.model.push_back({tensor.name, host_copy(tensor.value)});
      const auto keep = [&](const char* suffix, const at::Tensor& moment) {
        if (moment.defined()) shard.optimizer.push_back({tensor.name + suffix, host_copy(moment)});
      };
      keep(".exp_avg", tensor.exp_avg);
      keep(".exp_avg_sq", tensor.exp_avg_sq);
      keep(".master", tensor.master);
    }
  }
}

void write_checkpoint(const fs::path& folder, const CheckpointShard& shard, i64 keep) {
  const fs::path unfinished =
      folder / fmt::format(".{}.{}.unfinished", folder_name(shard.info.step), shard.attempt);
  std::error_code code;
  fs::create_directories(unfinished, code);
  if (code) fail<IoError>(unfinished.string(), "cannot create folder: {}", code.message());
  try {
    write_safetensors(unfinished / part_name("model", shard.rank, shard.num_ranks), shard.model);
    write_safetensors(unfinished / part_name("optimizer", shard.rank, shard.num_ranks), shard.optimizer);
    write_synced(unfinished / shard_name(shard.rank), shard_listing(unfinished, shard).dump() + "\n");
    if (shard.rank != 0) return;
    const std::vector<Json> shards = wait_for_shards(unfinished, shard.num_ranks);
    for (i32 r = 0; r < shard.num_ranks; ++r) fs::remove(unfinished / shard_name(r));
    if (shard.num_ranks > 1) write_index(unfinished, shards, shard.num_ranks);
    write_synced(unfinished / "config.json", shard.config.dump(2) + "\n");
    write_info(unfinished, shard, shards);
    publish(unfinished, folder, shard.info.step);
    remove_older(folder, keep);
  } catch (const fs::filesystem_error& error) {
    fs::remove_all(unfinished, code);
    fail<IoError>(unfinished.string(), "cannot write checkpoint: {}", error.code().message());
  } catch (...) {
    fs::remove_all(unfinished, code);
    throw;
  }
}

std::vector<FoundCheckpoint> find_checkpoints(const fs::path& folder,
                                              const std::function<void(const std::string&)>& on_broken) {
  std::vector<FoundCheckpoint> found;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    if (!entry.path().filename().string().starts_with("step-")) continue;
    try {
      const Json json = read_info(entry.path());
      CheckpointInfo info;
      info.step = json.at("step");
      info.sequences = json.at("sequences");
      info.seed = json.at("seed");
      info.text = std::stoull(json.at("text").get<std::string>(), nullptr, 16);
      info.version = json.at("version");
      info.job = json.at("job");
      info.skipped = json.value("skipped", i64{0});
      info.loss_scale = {json.value("loss_scale", 1.0), json.value("good_steps", i64{0})};
      found.push_back({entry.path(), std::move(info)});
    } catch (const Error& error) {
      on_broken(error.what());
    } catch (const std::exception& error) {
      on_broken(fmt::format("[{}] {}", entry.path().string(), error.what()));
    }
  }
  std::sort(found.begin(), found.end(),
            [](const FoundCheckpoint& a, const FoundCheckpoint& b) { return a.info.step > b.info.step; });
  return found;
}

void load_checkpoint(const FoundCheckpoint& checkpoint, const ModelConfig& model,
                     const std::vector<DeviceState*>& states) {
  const Json info = read_info(checkpoint.path);
  Json got = info.at("config"), expected = to_hf(model);
  if (got != expected) {
    for (const auto& [key, value] : expected.items()) {
      if (got.value(key, Json()) == value) continue;
      fail<ConfigError>(checkpoint.path.string(),
                        "is of another model: {} is {}, expected {}. Give another output folder, or "
                        "--checkpoint.resume false.",
                        key, got.value(key, Json()).dump(), value.dump());
    }
  }
  const Archive archive(checkpoint.path, info.at("files"));
  for (DeviceState* state : states) {
    for (const LogicalTensor& tensor : state->store().tensors()) load_tensor(archive, tensor);
    state->store().set_updates(checkpoint.info.step - checkpoint.info.skipped);
  }
}

void remove_unfinished(const fs::path& folder) {
  std::error_code code;
  std::vector<fs::path> left;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(".step-") && name.ends_with(".unfinished")) left.push_back(entry.path());
    if (name.starts_with(".old-step-")) left.push_back(entry.path());
  }
  for (const fs::path& path : left) fs::remove_all(path, code);
}

CheckpointWriter::CheckpointWriter(fs::path folder, const CheckpointOptions& options)
    : folder_(std::move(folder)), options_(options) {}

CheckpointWriter::~CheckpointWriter() {
  if (thread_.joinable()) thread_.join();
}

void CheckpointWriter::write(CheckpointShard shard) {
  finish();
  if (!options_.async) {
    write_checkpoint(folder_, shard, options_.keep);
    return;
  }
  thread_ = std::thread([this, shard = std::move(shard)] {
    try {
      write_checkpoint(folder_, shard, options_.keep);
    } catch (...) {
      error_ = std::current_exception();
    }
  });
}

void CheckpointWriter::finish() {
  if (thread_.joinable()) thread_.join();
  if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
}

}  // namespace hetermoe
