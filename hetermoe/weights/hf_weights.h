#pragma once
#include <filesystem>
#include <string>
#include <vector>

#include "hetermoe/exec/device_state.h"
#include "hetermoe/weights/hf_folder.h"
#include "hetermoe/weights/tensor_map.h"

namespace hetermoe {

/// Throws ConfigError for a checkpoint of a run with adapters: its weights are those without them.
void check_no_adapters(const std::filesystem::path& folder);

/// The parameters of a model in a Hugging Face folder, by their names in parameters(model), whatever the
/// layout of the files.
class HfWeights {
 public:
  /// Throws ConfigError when the folder holds anything but the parameters of this model, with the first
  /// names.
  HfWeights(const std::filesystem::path& folder, const ModelConfig& model);

  const HfFolder& folder() const { return folder_; }
  const TensorMap& map() const { return map_; }
  /// As in the file; bf16 for FP8 and 4-bit numbers with factors, whose values are products.
  at::ScalarType dtype(const std::string& parameter) const;
  /// In the precision of the file (FP8 and 4 bits: fp32), perhaps not contiguous; only this part of the file
  /// is read. Throws IoError when a value is NaN or infinite.
  at::Tensor read(const std::string& parameter) const;

 private:
  const TensorSource& source(const std::string& parameter) const;
  void check_tied_head() const;

  HfFolder folder_;
  FileFacts facts_;
  TensorMap map_;
};

/// The model of a folder with weights.
ModelConfig model_of(const HfFolder& folder);

/// Sets a parameter on one device: the master, where there is one, from `whole` as it is, the value from the
/// master.
void set_parameter(const LogicalTensor& tensor, const at::Tensor& whole);

/// Fills all parameters and buffers of devices; moments stay as they are. Throws IoError, also when a number
/// is too large for the dtype of a device (fp16).
void load_weights(const HfWeights& weights, const std::vector<DeviceState*>& states);

/// Throws IoError that names the tensor when one of its values is NaN or infinite.
void check_finite_values(const at::Tensor& tensor, const std::string& where, const std::string& name);

}  // namespace hetermoe
