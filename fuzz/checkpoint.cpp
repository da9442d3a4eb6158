#include "hetermoe/train/checkpoint.h"

#include "fuzz/scratch.h"
#include "fuzz/small_plans.h"
#include "fuzz/target.h"
#include "hetermoe/base/checksum.h"

// A checkpoint folder. Up to the first zero byte the input is checkpoint.json, after it model.safetensors. In
// a JSON that can be parsed, checksum and file sizes are made to fit: else no mutation would get past them.
namespace hetermoe::fuzz {
namespace {

namespace fs = std::filesystem;

void mend(Json& json, std::size_t model_size) {
  if (!json.is_object()) return;
  if (json.contains("files") && json["files"].is_object() && json["files"].contains("model.safetensors")) {
    json["files"]["model.safetensors"] = model_size;
  }
  if (!json.contains("checksum")) return;
  json.erase("checksum");
  const std::string text = json.dump();
  json["checksum"] = fmt::format("{:016x}", checksum(text.data(), text.size()));
}

void run(const std::string& input) {
  const std::size_t cut = std::min(input.find('\0'), input.size());
  std::string text = input.substr(0, cut);
  const std::string model = input.substr(std::min(cut + 1, input.size()));
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  try {
    mend(json, model.size());
    if (!json.is_discarded()) text = json.dump();
  } catch (const Json::exception&) {  // text that is no UTF-8 goes in as it is
  }
  const fs::path folder = scratch_folder() / "checkpoints", step = folder / "step-00000002";
  fs::create_directories(step);
  put_file(step / "checkpoint.json", text);
  put_file(step / "model.safetensors", model);
  for (const FoundCheckpoint& found : find_checkpoints(folder, [](const std::string&) {})) {
    load_checkpoint(found, tiny_model(), {});
  }
}

std::vector<std::string> seeds() {
  const fs::path folder = scratch_folder() / "seed";
  CheckpointShard shard;
  shard.info.step = 2;
  shard.info.sequences = 8;
  shard.info.version = "0.1.0";
  shard.info.job = Json::object();
  shard.config = to_hf(tiny_model());
  shard.model = {{"a", at::ones({2, 3})}};
  write_checkpoint(folder, shard, 1);
  const fs::path step = folder / "step-00000002";
  Json json = read_json(step / "checkpoint.json");
  json["files"].erase("optimizer.safetensors");
  return {json.dump(1) + '\0' + read_text(step / "model.safetensors")};
}

}  // namespace

extern const Target kCheckpoint{"checkpoint", run, seeds};

}  // namespace hetermoe::fuzz
