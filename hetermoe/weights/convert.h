#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "hetermoe/weights/hf_weights.h"
#include "hetermoe/weights/hf_writer.h"

namespace hetermoe {

struct ConvertOptions {
  std::optional<at::ScalarType> dtype = {};  ///< of parameters; none = as they are (FP8: bf16)
  std::optional<ExpertLayout> layout = {};   ///< none = file_layout() of the model
  i64 most_bytes = kMostShardBytes;          ///< of a file
};

struct Converted {
  ModelConfig model;
  i64 num_tensors = 0, bytes = 0, num_files = 0;
  ExpertLayout from = ExpertLayout::kNone, to = ExpertLayout::kNone;
  std::vector<std::string> ignored;  ///< tensors of the source that were not taken along
};

/// The dtype of a parameter of the source in the converted folder. A buffer keeps its precision, at least
/// fp32.
at::ScalarType converted_dtype(const HfWeights& weights, const ParamInfo& parameter,
                               std::optional<at::ScalarType> dtype);

/// The same dtype, shape and bits.
bool equal_bits(const at::Tensor& a, const at::Tensor& b);

/// Writes the weights of a Hugging Face folder into another one, tensor by tensor. Throws ConfigError or
/// IoError.
Converted convert_folder(const std::filesystem::path& from, const std::filesystem::path& to,
                         const ConvertOptions& options);

/// Reads both folders and compares every parameter to the bit, those of `from` in the dtype of the
/// conversion. Throws InputError with the first names that differ.
void verify_converted(const std::filesystem::path& from, const std::filesystem::path& to,
                      const ConvertOptions& options);

}  // namespace hetermoe
