#pragma once
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/weights/hf_weights.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

// Hugging Face folders to be damaged by a test.
namespace hetermoe {

inline std::filesystem::path parity_folder(const std::string& family) {
  return std::filesystem::path(HM_SOURCE_DIR) / "tests/data/parity" / family;
}
inline const std::vector<std::string> kParityFamilies = {
    "mixtral", "qwen3_moe", "olmoe",    "deepseek_v2", "deepseek_v3",
    "kimi_k2", "qwen2_moe", "glm4_moe", "minimax_m2",  "ernie4_5_moe"};
/// Without experts.
inline const std::vector<std::string> kDenseFamilies = {"llama", "qwen3", "mistral", "qwen2"};
/// Of these, those whose MLPs can become experts.
inline const std::vector<std::string> kSparseFamilies = {"llama", "qwen3", "mistral"};
inline std::vector<std::string> all_families() {
  std::vector<std::string> all = kParityFamilies;
  all.insert(all.end(), kDenseFamilies.begin(), kDenseFamilies.end());
  return all;
}

inline double largest(const at::Tensor& difference) { return difference.abs().max().item<double>(); }

using Tensors = std::map<std::string, at::Tensor>;

/// All tensors of a safetensors file.
inline Tensors tensors_of(const std::filesystem::path& file) {
  const SafetensorsReader reader(file);
  Tensors out;
  for (const std::string& name : reader.names()) out[name] = reader.read(name);
  return out;
}

/// All parameters of a folder.
inline Tensors read_all(const std::filesystem::path& folder, const ModelConfig& model) {
  const HfWeights weights(folder, model);
  Tensors out;
  for (const ParamInfo& parameter : parameters(model))
    out[parameter.name] = weights.read(parameter.name).clone();
  return out;
}
inline Tensors read_all(const std::filesystem::path& folder) {
  return read_all(folder, model_of(HfFolder(folder)));
}

/// As other programs write it: without checksums.
inline void write_file(const std::filesystem::path& file, const Tensors& tensors) {
  std::vector<TensorHead> heads;
  for (const auto& [name, tensor] : tensors)
    heads.push_back({name, tensor.scalar_type(), tensor.sizes().vec()});
  SafetensorsWriter writer(file, heads);
  for (const auto& [name, tensor] : tensors) writer.add(tensor);
  writer.finish();
}

/// A copy of a family's folder whose tensors a test may change.
class FolderCopy {
 public:
  explicit FolderCopy(const std::string& family) {
    std::filesystem::copy_file(parity_folder(family) / "config.json", folder_ / "config.json");
    tensors = tensors_of(parity_folder(family) / "model.safetensors");
    write();
  }
  void write() const { write_file(file(), tensors); }
  /// The tensors in two files and an index, by whether the name is before the other.
  void write_shards(const std::string& split) const {
    std::filesystem::remove(file());
    std::map<std::string, Tensors> files;
    Json map = Json::object();
    for (const auto& [name, tensor] : tensors) {
      const std::string shard = name < split ? shard_name(1) : shard_name(2);
      files[shard][name] = tensor;
      map[name] = shard;
    }
    for (const auto& [name, part] : files) write_file(path() / name, part);
    write_index(map);
  }
  void write_index(const Json& map) const {
    write_text(path() / "model.safetensors.index.json", Json{{"weight_map", map}}.dump());
  }
  Json index() const { return read_json(path() / "model.safetensors.index.json").at("weight_map"); }
  static std::string shard_name(int i) { return fmt::format("model-{:05}-of-00002.safetensors", i); }

  const std::filesystem::path& path() const { return folder_.path(); }
  std::filesystem::path file() const { return path() / "model.safetensors"; }
  Json config() const { return read_json(path() / "config.json"); }
  void set_config(const Json& config) const { write_text(path() / "config.json", config.dump()); }
  ModelConfig model() const { return load_model(path().string()); }

  /// Everything is read, as by a run on one device.
  Tensors read_all() const { return hetermoe::read_all(path(), model()); }
  /// The error of reading everything.
  std::string error() const {
    return error_of<Error>([&] { read_all(); });
  }

  Tensors tensors;

 private:
  WorkFolder folder_;
};

inline bool has_part(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

inline void expect_same_tensors(const Tensors& a, const Tensors& b) {
  ASSERT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) {
    ASSERT_EQ(b.count(name), 1u) << name;
    EXPECT_EQ(tensor.scalar_type(), b.at(name).scalar_type()) << name;
    EXPECT_TRUE(at::equal(tensor, b.at(name))) << name;
  }
}

}  // namespace hetermoe
