#pragma once
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "hetermoe/weights/safetensors.h"

// Writing a Hugging Face folder: it has its name when it is whole, and never before.
namespace hetermoe {

/// A file with some of the tensors.
struct ShardFile {
  std::string name;
  i64 bytes = 0;  ///< of tensors
  std::vector<std::string> tensors = {};
};
Json to_json(const std::vector<ShardFile>& shards);
std::vector<ShardFile> shards_from_json(const Json& json);

inline constexpr i64 kMostShardBytes = 5'000'000'000;

/// Writes tensors in their order into files of at most `most_bytes` of tensors (one tensor may be larger)
/// below names that begin with `prefix`. Throws IoError.
std::vector<ShardFile> write_shards(const std::filesystem::path& folder, const std::string& prefix,
                                    const std::vector<OutTensor>& tensors, i64 most_bytes = kMostShardBytes);

/// Contents of a folder beside the tensors.
struct FolderContents {
  Json config;                        ///< config.json
  std::filesystem::path source = {};  ///< tokenizer and generation files are copied from there; empty = none
  Json origin = Json::object();       ///< what made it, for hetermoe.json
  std::vector<std::string> names = {};  ///< of the tensors that must be there, each once
};

/// A folder as it was given, "out/" like "out"; of a link the folder to which it leads.
std::filesystem::path folder_path(const std::string& name);

/// Where the model after so many steps lies in the folder of the finished one, as Trainer of transformers has
/// it. These stay when the folder is written.
std::filesystem::path export_folder_of(const std::filesystem::path& target, i64 steps_done);

/// Throws ConfigError when a folder cannot be written there: something else is there than an earlier folder
/// of this program, whose files are replaced, it cannot be renamed (a mount point), or it is `source`. To be
/// called before the work.
void check_hf_target(const std::filesystem::path& target, const std::filesystem::path& source);

/// Where its files are written first: beside the folder.
std::filesystem::path unfinished_folder(const std::filesystem::path& target);

/// Makes it, empty. Throws IoError.
void begin_hf_folder(const std::filesystem::path& target);

/// Renames the shards as Hugging Face does, adds index, config.json, the files of `source` and hetermoe.json,
/// syncs all and gives the folder its name. Throws IoError; the folder that had the name is then as it was.
void finish_hf_folder(const std::filesystem::path& target, const std::vector<ShardFile>& shards,
                      const FolderContents& contents);

/// All of the above: writes the tensors in their order, whose names `contents` need not list. If that fails,
/// the written files are removed again. Throws ConfigError or IoError.
std::vector<ShardFile> write_hf_folder(const std::filesystem::path& target,
                                       const std::vector<OutTensor>& tensors, FolderContents contents,
                                       i64 most_bytes = kMostShardBytes);

/// The config.json of a model whose weights have another dtype now: what else the file says stays.
Json with_dtype(Json config, at::ScalarType dtype);

}  // namespace hetermoe
