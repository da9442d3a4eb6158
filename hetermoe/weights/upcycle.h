#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hetermoe/model/growth.h"
#include "hetermoe/weights/hf_weights.h"
#include "hetermoe/weights/hf_writer.h"

// Hugging Face folders whose model grows from E to m E experts, or shrinks (weights/merge.h).
namespace hetermoe {

/// As a new model has it.
at::Tensor drawn_parameter(const ParamInfo& parameter, u64 seed);

/// A parameter or buffer of the grown model from that of the source (source_name), in its dtype: experts and
/// all that does not belong to a router are `source` itself.
at::Tensor grown_tensor(const Growth& growth, const ParamInfo& parameter, const at::Tensor& source);

/// A moment of the optimizer: power 1 of exp_avg, 2 of exp_avg_sq, which grow with powers of the gradient.
at::Tensor grown_moment(const Growth& growth, const ParamInfo& parameter, const at::Tensor& source,
                        i64 power);

/// Sizes of a grown folder.
struct Upcycled {
  i64 num_tensors = 0, bytes = 0, num_files = 0;
};
/// Whole or nothing.
Upcycled write_upcycled(const std::filesystem::path& to, const std::vector<OutTensor>& tensors,
                        const FolderContents& contents, i64 most_bytes);
/// Compares every parameter of a folder with what it should be in the folder's dtype, bit by bit. Throws
/// InputError with the first names that differ. how: as in "those of the source, grown".
void verify_tensors(const HfWeights& from, const std::filesystem::path& to, const ModelConfig& model,
                    const char* how,
                    const std::function<at::Tensor(const ParamInfo&, at::ScalarType)>& expected);

/// Writes the grown model of a Hugging Face folder into another one, tensor by tensor: no more than one of
/// them is in memory. Throws ConfigError or IoError; then nothing is left of it.
Upcycled upcycle_folder(const HfWeights& from, const std::filesystem::path& to, const Growth& growth,
                        i64 most_bytes = kMostShardBytes);

/// Writes the model that grew by `growth` (plan_shrink) as it was before, each family of instances merged
/// (merged_tensor). Throws ConfigError where one is not alike (check_alike), or IoError.
Upcycled merge_folder(const HfWeights& from, const std::filesystem::path& to, const Growth& growth,
                      double least_cosine, i64 most_bytes = kMostShardBytes);
/// Reads both folders and compares every parameter to the bit. Throws InputError.
void verify_merged(const HfWeights& from, const std::filesystem::path& to, const Growth& growth);

/// Reads both folders and compares every parameter to the bit: those of experts and others with their source,
/// router rows with the source and the noise on copies. Throws InputError with the first names that differ.
void verify_upcycled(const HfWeights& from, const std::filesystem::path& to, const Growth& growth);

/// Squared norms of all tensors of each expert.
ExpertScores weight_scores(const HfWeights& weights, const ModelConfig& model);
/// A draw: the control.
ExpertScores random_scores(const ModelConfig& model, u64 seed);

}  // namespace hetermoe
