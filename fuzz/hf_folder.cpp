#include "hetermoe/weights/hf_folder.h"

#include "fuzz/micro_model.h"
#include "fuzz/scratch.h"
#include "fuzz/target.h"
#include "hetermoe/weights/hf_weights.h"

// A Hugging Face folder: the input is its index, or the one file of weights; config.json and a shard stay as
// they are.
namespace hetermoe::fuzz {
namespace {

namespace fs = std::filesystem;

const char* const kShard = "model-00001-of-00001.safetensors";
const char* const kIndex = "model.safetensors.index.json";
const char* const kSingle = "model.safetensors";

const ModelConfig& model() {
  static const ModelConfig one = micro_model(1, 2);
  return one;
}

std::vector<NamedTensor> weights() {
  std::vector<NamedTensor> all;
  for (const ParamInfo& parameter : parameters(model()))
    all.push_back({parameter.name, at::ones(parameter.shape, at::kBFloat16)});
  return all;
}

const fs::path& folder() {
  static const ScratchFolder scratch;
  static const fs::path path = [] {
    write_text(scratch.path() / "config.json", to_hf(model()).dump());
    return scratch.path();
  }();
  return path;
}

void run(const std::string& input) {
  fs::remove(folder() / kShard);
  fs::remove(folder() / kSingle);
  fs::remove(folder() / kIndex);
  if (input.starts_with("{")) {
    write_safetensors(folder() / kShard, weights());
    write_text(folder() / kIndex, input);
  } else {
    write_text(folder() / kSingle, input);
  }
  const HfWeights read(folder(), model());
  for (const ParamInfo& parameter : parameters(model())) {
    const at::Tensor tensor = read.read(parameter.name);
    if (tensor.sizes() != at::IntArrayRef(parameter.shape))
      throw std::logic_error(parameter.name + " is read with another shape");
  }
}

std::vector<std::string> seeds() {
  Json map = Json::object();
  for (const NamedTensor& tensor : weights()) map[tensor.name] = kShard;
  write_safetensors(folder() / kSingle, weights());
  return {Json{{"metadata", {{"total_size", 1}}}, {"weight_map", map}}.dump(), read_text(folder() / kSingle)};
}

}  // namespace

extern const Target kHfFolder{"hf_folder", run, seeds};

}  // namespace hetermoe::fuzz
