#include "hetermoe/model/model_config.h"

#include <algorithm>
#include <cmath>
#include <iterator>

#include "hetermoe/base/paths.h"

namespace hetermoe {
namespace fs = std::filesystem;

const std::vector<std::string>& EnumNames<AttentionKind>::names() {
  static const std::vector<std::string> all = {"gqa", "mla"};
  return all;
}
const std::vector<std::string>& EnumNames<QkNorm>::names() {
  static const std::vector<std::string> all = {"none", "per_head", "whole"};
  return all;
}
const std::vector<std::string>& EnumNames<RouterScore>::names() {
  static const std::vector<std::string> all = {"softmax", "sigmoid"};
  return all;
}
const std::vector<std::string>& EnumNames<GroupScore>::names() {
  static const std::vector<std::string> all = {"none", "max", "top_two_sum"};
  return all;
}

i64 ModelConfig::num_moe_layers() const {
  return static_cast<i64>(std::count(dense_layer.begin(), dense_layer.end(), false));
}

ModelConfig first_layers(const ModelConfig& model, i64 layers) {
  ModelConfig out = model;
  out.num_layers = layers;
  out.dense_layer.resize(static_cast<std::size_t>(layers));
  if (!out.sliding_layer.empty()) out.sliding_layer.resize(static_cast<std::size_t>(layers));
  return out;
}

RopeAngles rope_angles(const ModelConfig& model, i64 seq_len) {
  return scaled_rope(model.rope_scaling, model.rope_dim(), model.rope_theta, seq_len, model.max_positions);
}

double score_scale(const ModelConfig& model) {
  const double plain = 1 / std::sqrt(static_cast<double>(model.head_dim));
  // DeepSeek puts yarn's factor for all elements of a head here, and the rest on cosines and sines.
  const RopeScaling& rope = model.rope_scaling;
  if (model.attention != AttentionKind::kMla || rope.mscale_all_dim == 0) return plain;
  const double mscale = yarn_mscale(rope.factor, rope.mscale_all_dim);
  return plain * mscale * mscale;
}

void check_trainable(const ModelConfig& model) {
  if (model.unsupported.empty()) return;
  std::string list;
  for (const std::string& item : model.unsupported) list += (list.empty() ? "" : "; ") + item;
  fail<ConfigError>(
      model.name,
      "this model cannot be trained here: {}. Planning, simulation and inspection do not depend on "
      "these settings.",
      list);
}

namespace {

/// "maker/model", as the Hugging Face hub names models, and no path.
bool is_name_of_hub(const fs::path& path) {
  std::error_code code;
  const fs::path maker = path.parent_path();
  return path.is_relative() && std::distance(path.begin(), path.end()) == 2 && maker != "." &&
         maker != ".." && path.extension() != ".json" && !fs::exists(maker, code);
}

}  // namespace

fs::path find_model(const std::string& name_or_path) {
  std::error_code code;
  const fs::path path(name_or_path);
  if (is_name_of_hub(path))
    fail<ConfigError>(
        name_or_path,
        "no such file or folder, and models are not fetched from the Hugging Face hub. Download it "
        "(hf download {} --local-dir DIR) and name that folder",
        name_or_path);
  if (fs::is_directory(path, code)) {
    if (fs::exists(path / "config.json", code)) return path / "config.json";
    if (!only_sounds_like_a_model(path)) {
      const bool adapters = fs::exists(path / "adapter_config.json", code);
      fail<ConfigError>(
          name_or_path, "this folder holds {}, expected a Hugging Face model folder",
          adapters ? "adapters: their base is the model, and they are train.lora.from" : "no config.json");
    }
    return configs_folder() / "models" / (name_or_path + ".json");
  }
  return find_config(name_or_path, "models", "json");
}

ModelConfig load_model(const std::string& name_or_path) {
  const fs::path file = find_model(name_or_path);
  ModelConfig model = any_model_from_hf(read_json(file), file.string());
  const fs::path folder = fs::weakly_canonical(file).parent_path();
  model.name =
      printable(file.filename() == "config.json" ? folder.filename().string() : file.stem().string());
  return model;
}

std::vector<std::string> known_models() { return config_names("models", "json"); }

bool only_sounds_like_a_model(const std::filesystem::path& folder) {
  std::error_code ignored;
  if (!fs::is_directory(folder, ignored) || fs::exists(folder / "config.json", ignored)) return false;
  const std::vector<std::string> names = known_models();
  return std::find(names.begin(), names.end(), folder.string()) != names.end();
}

}  // namespace hetermoe
