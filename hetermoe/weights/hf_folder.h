#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "hetermoe/weights/safetensors.h"

namespace hetermoe {

/// Whether a folder holds weights of a Hugging Face model, whole or not.
bool has_weights(const std::filesystem::path& folder);

/// The files of a Hugging Face folder: config.json and model.safetensors, or shards with their index. Says
/// nothing of what the tensors mean.
class HfFolder {
 public:
  /// Reads config, index and the headers of all files. Index and files must agree: each tensor is in one
  /// file, the one that the index names. Throws ConfigError or IoError that names file and tensor.
  explicit HfFolder(const std::filesystem::path& folder);

  const std::filesystem::path& path() const { return folder_; }
  const Json& config() const { return config_; }
  std::vector<std::filesystem::path> files() const;
  i64 bytes() const;  ///< of all files
  std::vector<TensorHead> heads() const;
  const TensorHead& head(const std::string& tensor) const;
  const std::filesystem::path& file_of(const std::string& tensor) const;
  /// As SafetensorsReader::map.
  at::Tensor map(const std::string& tensor) const;

 private:
  struct Place {
    TensorHead head;
    const SafetensorsReader* file;
  };
  void read_shards(const std::filesystem::path& index);
  void add_file(const std::string& name);
  const Place& place(const std::string& tensor) const;

  std::filesystem::path folder_;
  Json config_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  std::map<std::string, Place> tensors_;
};

}  // namespace hetermoe
