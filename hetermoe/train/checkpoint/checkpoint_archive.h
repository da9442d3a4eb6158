#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "hetermoe/base/json.h"
#include "hetermoe/base/types.h"
#include "hetermoe/weights/safetensors.h"

namespace hetermoe {

/// In a checkpoint, of what a device keeps of a divided tensor from element `first` on; without it what the
/// names of all its pieces begin with.
std::string piece_name(const std::string& tensor, std::optional<i64> first);
/// Of what a place's gradients of a tensor lost on their way (StateTensors::lost).
std::string lost_name(const std::string& tensor, PlaceId place);

/// The tensors of all files of a checkpoint by name.
class Archive {
 public:
  /// files: names in the folder are the keys.
  Archive(const std::filesystem::path& folder, const Json& files);
  bool has(const std::string& name) const;
  /// Dtype of a tensor that is there, whole or in pieces. Throws IoError.
  at::ScalarType dtype(const std::string& name) const;
  /// A tensor of this shape, which lies in the files whole or in pieces. Throws IoError.
  at::Tensor read(const std::string& name, at::IntArrayRef sizes) const;

 private:
  std::map<i64, std::string> pieces_of(const std::string& name) const;
  at::Tensor join_pieces(const std::string& name, at::IntArrayRef sizes) const;

  std::filesystem::path folder_;
  std::vector<std::unique_ptr<SafetensorsReader>> readers_;
  std::map<std::string, const SafetensorsReader*> where_;
};

}  // namespace hetermoe
