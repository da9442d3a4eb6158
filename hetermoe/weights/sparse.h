#pragma once
#include "hetermoe/model/sparse.h"
#include "hetermoe/weights/upcycle.h"

// Hugging Face folders in which dense MLPs become experts (model/sparse.h).
namespace hetermoe {

/// Writes the model with experts into another folder, tensor by tensor; router rows and neurons that an MLP
/// does not have are drawn from (seed, name). Throws ConfigError or IoError; then nothing is left of it.
Upcycled sparsify_folder(const HfWeights& from, const std::filesystem::path& to, const Sparse& sparse,
                         u64 seed, i64 most_bytes = kMostShardBytes);

/// Reads both folders and compares every parameter to the bit. Throws InputError.
void verify_sparse(const HfWeights& from, const std::filesystem::path& to, const Sparse& sparse, u64 seed);

}  // namespace hetermoe
