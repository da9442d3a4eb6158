#include "hetermoe/train/checkpoint/checkpoint.h"

#include <fstream>
#include <map>

#include "fuzz/micro_model.h"
#include "fuzz/scratch.h"
#include "fuzz/small_plans.h"
#include "fuzz/target.h"
#include "hetermoe/base/checksum.h"

// A checkpoint folder: its files from the parts of the input, each after a line "=== NAME". So that a changed
// checkpoint.json is not refused for its checksum alone, that and the sizes of files are made right again;
// the part raw.json becomes a checkpoint.json as it stands.
namespace hetermoe::fuzz {
namespace {

namespace fs = std::filesystem;

using Files = std::map<std::string, std::string>;

const std::string kMark = "=== ", kInfo = "checkpoint.json", kRawInfo = "raw.json";

std::string join(const Files& files) {
  std::string text;
  for (const auto& [name, bytes] : files) text += kMark + name + "\n" + bytes + "\n";
  return text;
}

bool is_plain_name(const std::string& name) {
  return !name.empty() && name.size() < 100 && name[0] != '.' && name.find('/') == std::string::npos &&
         name.find('\0') == std::string::npos;
}

Files split(const std::string& text) {
  Files files;
  std::size_t at = text.starts_with(kMark) ? 0 : text.size();
  while (at < text.size()) {
    const std::size_t next = std::min(text.find("\n" + kMark, at), text.size());
    const std::string part = text.substr(at + kMark.size(), next - at - kMark.size());
    const std::size_t line = std::min(part.find('\n'), part.size());
    const std::string name = part.substr(0, line);
    if (is_plain_name(name)) files[name] = part.substr(std::min(line + 1, part.size()));
    at = next + 1;
  }
  return files;
}

/// checkpoint.json with the sizes of the files that there are, and the checksum that belongs to it.
std::string sealed(const std::string& text, const Files& files) {
  Json json;
  try {
    json = parse_json(text, kInfo);
  } catch (const Error&) {
    return text;
  }
  if (!json.is_object()) return text;
  if (json.contains("files") && json["files"].is_object()) {
    for (auto& [name, size] : json["files"].items()) {
      if (files.count(name) > 0) size = files.at(name).size();
    }
  }
  json.erase("checksum");
  const std::string body = json.dump();
  json["checksum"] = fmt::format("{:016x}", checksum(body.data(), body.size()));
  return json.dump();
}

void write_files(const fs::path& folder, Files files) {
  if (files.count(kInfo) > 0) files[kInfo] = sealed(files[kInfo], files);
  if (files.count(kRawInfo) > 0) files[kInfo] = files[kRawInfo];
  fs::remove_all(folder);
  fs::create_directories(folder);
  for (const auto& [name, bytes] : files) std::ofstream(folder / name, std::ios::binary) << bytes;
}

/// One device with all of a model.
struct OneDevice {
  ModelConfig model = micro_model(1, 2);
  Schedule schedule;
  std::unique_ptr<DeviceState> state;

  OneDevice() {
    StrategyRequest request;
    request.seq_len = 2;
    request.sequences = request.microbatches = 1;
    const Plan plan = find_strategy("single").make(model, demo_cluster(), request);
    schedule = build_schedule(plan, model);
    state = std::make_unique<DeviceState>(0, schedule, model, storage_options(plan, 0));
    state->store().initialize(1);
  }
};

OneDevice& device() {
  static OneDevice one;
  return one;
}

const fs::path& scratch() {
  static const ScratchFolder folder;
  return folder.path();
}

void run(const std::string& input) {
  write_files(scratch() / "step-00000003", split(input));
  for (const FoundCheckpoint& found : find_checkpoints(scratch(), [](const std::string&) {}))
    load_checkpoint(found, device().model, {device().state.get()});
}

std::vector<std::string> seeds() {
  CheckpointShard shard;
  shard.info.step = 3;
  shard.info.run = "run";
  shard.info.version = "1";
  shard.info.job = {{"model", "micro"}};
  shard.config = to_hf(device().model);
  collect_tensors({device().state.get()}, shard);
  const fs::path folder = scratch() / "written";
  write_checkpoint(folder, shard, 1);
  Files files;
  for (const auto& entry : fs::directory_iterator(folder / "step-00000003"))
    files[entry.path().filename().string()] = read_text(entry.path());
  fs::remove_all(folder);
  Files raw = files;
  raw[kRawInfo] = files[kInfo];
  raw.erase(kInfo);
  return {join(files), join(raw)};
}

}  // namespace

extern const Target kCheckpoint{"checkpoint", run, seeds};

}  // namespace hetermoe::fuzz
