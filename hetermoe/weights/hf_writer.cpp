#include "hetermoe/weights/hf_writer.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

#include "hetermoe/base/file_system.h"
#include "hetermoe/base/numbers.h"
#include "hetermoe/base/version.h"
#include "hetermoe/weights/disk_room.h"

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOriginFile = "hetermoe.json";

/// What belongs to a model and is neither weights nor config.json.
bool is_carried(const std::string& name) {
  static const std::vector<std::string> kNames = {"generation_config.json",
                                                  "special_tokens_map.json",
                                                  "added_tokens.json",
                                                  "vocab.json",
                                                  "vocab.txt",
                                                  "merges.txt",
                                                  "preprocessor_config.json"};
  return name.starts_with("tokenizer") || name.starts_with("chat_template") || name.starts_with("LICENSE") ||
         std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

void write_synced(const fs::path& path, const std::string& text) {
  write_text(path, text);
  sync_to_disk(path);
}

/// Errors of the file system name what was written.
template <class F>
void with_write_errors(const fs::path& folder, F&& write) {
  try {
    write();
  } catch (const fs::filesystem_error& error) {
    fail<WriteError>((error.path1().empty() ? folder : error.path1()).string(), "cannot write: {}",
                     error.code().message());
  }
}

ShardFile write_shard(const fs::path& folder, const std::string& name, const std::vector<OutTensor>& tensors,
                      std::size_t begin, std::size_t end) {
  ShardFile shard{.name = name};
  std::vector<TensorHead> heads;
  for (std::size_t i = begin; i < end; ++i) {
    heads.push_back(tensors[i].head);
    shard.tensors.push_back(tensors[i].head.name);
    shard.bytes += tensors[i].head.bytes();
  }
  SafetensorsWriter writer(folder / name, std::move(heads));
  for (std::size_t i = begin; i < end; ++i) writer.add(tensors[i].make());
  writer.finish();
  return shard;
}

/// Each tensor once, none missing, none too many.
void check_names(const fs::path& target, const std::vector<ShardFile>& shards,
                 const std::vector<std::string>& names) {
  std::map<std::string, i64> count;
  for (const std::string& name : names) count[name] = 0;
  for (const ShardFile& shard : shards) {
    for (const std::string& tensor : shard.tensors) {
      const auto found = count.find(tensor);
      HM_CHECK(found != count.end(), "{} is no tensor of {}", tensor, target.string());
      ++found->second;
    }
  }
  for (const auto& [name, times] : count)
    HM_CHECK(times == 1, "{}: tensor {} was written {} times", target.string(), name, times);
}

/// Names of the files that an earlier folder of this program has; nothing else is ever removed.
std::set<std::string> own_files(const fs::path& folder) {
  std::set<std::string> names;
  const Json json = read_json(folder / kOriginFile);
  if (json.is_object() && json.contains("files") && json.at("files").is_array()) {
    for (const Json& name : json.at("files")) {
      if (name.is_string()) names.insert(name.get<std::string>());
    }
  }
  return names;
}

void write_index(const fs::path& folder, const std::vector<ShardFile>& shards) {
  SortedJson map = SortedJson::object();
  i64 bytes = 0;
  for (const ShardFile& shard : shards) {
    bytes += shard.bytes;
    for (const std::string& tensor : shard.tensors) map[tensor] = shard.name;
  }
  const SortedJson index = {{"metadata", {{"total_size", bytes}}}, {"weight_map", std::move(map)}};
  write_synced(folder / "model.safetensors.index.json", index.dump(2) + "\n");
}

/// The files under their final names.
std::vector<ShardFile> rename_shards(const fs::path& folder, std::vector<ShardFile> shards) {
  for (std::size_t i = 0; i < shards.size(); ++i) {
    const std::string name = shards.size() == 1
                                 ? "model.safetensors"
                                 : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards.size());
    fs::rename(folder / shards[i].name, folder / name);
    shards[i].name = name;
  }
  return shards;
}

void copy_carried(const fs::path& from, const fs::path& to) {
  if (from.empty()) return;
  for (const auto& entry : fs::directory_iterator(from)) {
    const std::string name = entry.path().filename().string();
    if (!entry.is_regular_file() || !is_carried(name)) continue;
    fs::copy_file(entry.path(), to / name);
    sync_to_disk(to / name);
  }
}

void write_origin(const fs::path& folder, const Json& origin) {
  Json json = {{"version", version()}};
  json.update(origin);
  json["files"] = Json::array({kOriginFile});
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) names.insert(entry.path().filename().string());
  for (const std::string& name : names) json["files"].push_back(name);
  write_synced(folder / kOriginFile, json.dump(2) + "\n");
}

constexpr const char* kExport = "checkpoint-";  ///< and the number of steps

/// The model of an earlier step, whole.
bool is_export(const fs::path& path) {
  std::error_code code;
  const std::string name = path.filename().string();
  return name.starts_with(kExport) && whole_number(name.substr(std::string(kExport).size())) &&
         fs::exists(path / kOriginFile, code);
}

/// What a run that was cut left of one.
bool is_rest_of_export(const fs::path& path) {
  const std::string name = path.filename().string();
  return name.starts_with(fmt::format(".{}", kExport)) &&
         (name.ends_with(".unfinished") || name.ends_with(".old"));
}

void move_exports(const fs::path& from, const fs::path& to) {
  if (!fs::is_directory(from)) return;
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(from)) {
    if (is_export(entry.path()) && !fs::exists(to / entry.path().filename())) found.push_back(entry.path());
  }
  for (const fs::path& path : found) fs::rename(path, to / path.filename());
}

/// Beside the folder, hidden.
fs::path beside(const fs::path& target, const char* what) {
  return fs::absolute(target).parent_path() / fmt::format(".{}.{}", target.filename().string(), what);
}

/// At the end the folder gives way to the new one, which a mount point cannot: known before the work.
void try_to_move(const fs::path& target) {
  const fs::path moved = beside(target, "moved");
  std::error_code code;
  if (!fs::exists(target, code))
    fs::rename(moved, target, code);  // the program was ended between the lines below
  if (!fs::exists(target, code)) return;
  fs::rename(target, moved, code);
  if (!code) fs::rename(moved, target, code);
  if (code) {
    fail<ConfigError>(
        target.string(),
        "cannot give way to a finished folder: {}. If it is a mount point, name a folder in it, such as {}",
        code.message(), (target / "model").string());
  }
}

/// Nothing is lost when the folder is replaced.
void check_only_own_files(const fs::path& target) {
  std::error_code code;
  if (!fs::exists(target, code)) return;
  const std::string name = target.string();
  if (!fs::is_directory(target, code)) fail<ConfigError>(name, "is a file, expected a folder");
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(target)) {
    if (!is_export(entry.path()) && !is_rest_of_export(entry.path()))
      files.push_back(entry.path().filename().string());
  }
  if (files.empty()) return;
  if (!fs::exists(target / kOriginFile, code)) {
    fail<ConfigError>(name, "holds other files, expected a new folder, or one that was written by hetermoe");
  }
  const std::set<std::string> own = own_files(target);
  for (const std::string& file : files) {
    if (own.count(file) == 0) {
      fail<ConfigError>(name,
                        "holds {}, which hetermoe has not written and would be lost. Move it, or name "
                        "another folder",
                        file);
    }
  }
}

/// A program that was ended in publish() left the folder without its name, or its exports beside it.
void recover_folder(const fs::path& target) {
  const fs::path old = beside(target, "old");
  if (!fs::exists(target) && fs::exists(old)) fs::rename(old, target);
  if (!fs::exists(target)) return;
  for (const fs::path& left : {old, beside(target, "unfinished")}) move_exports(left, target);
  fs::remove_all(old);
}

void publish(const fs::path& unfinished, const fs::path& target) {
  sync_to_disk(unfinished);
  const fs::path before = take_name(unfinished, target, beside(target, "old"));
  move_exports(before, target);
  sync_to_disk(fs::absolute(target).parent_path());
  fs::remove_all(before);
}

}  // namespace

Json to_json(const std::vector<ShardFile>& shards) {
  Json json = Json::array();
  for (const ShardFile& shard : shards)
    json.push_back({{"name", shard.name}, {"bytes", shard.bytes}, {"tensors", shard.tensors}});
  return json;
}

std::vector<ShardFile> shards_from_json(const Json& json) {
  std::vector<ShardFile> shards;
  for (const Json& one : json)
    shards.push_back({one.at("name"), one.at("bytes"), one.at("tensors").get<std::vector<std::string>>()});
  return shards;
}

std::vector<ShardFile> write_shards(const fs::path& folder, const std::string& prefix,
                                    const std::vector<OutTensor>& tensors, i64 most_bytes) {
  std::vector<ShardFile> shards;
  for (std::size_t begin = 0; begin < tensors.size();) {
    i64 bytes = 0;
    std::size_t end = begin;
    while (end < tensors.size() && (end == begin || bytes + tensors[end].head.bytes() <= most_bytes))
      bytes += tensors[end++].head.bytes();
    const std::string name = fmt::format("{}-{:05}.safetensors", prefix, shards.size() + 1);
    shards.push_back(write_shard(folder, name, tensors, begin, end));
    begin = end;
  }
  return shards;
}

fs::path folder_path(const std::string& name) {
  const fs::path given(name), path = given.has_filename() ? given : given.parent_path();
  std::error_code code;
  return fs::is_symlink(fs::symlink_status(path, code)) && fs::exists(path, code) ? fs::canonical(path)
                                                                                  : path;
}

void check_hf_target(const fs::path& target, const fs::path& source) {
  std::error_code code;
  const std::string name = target.string();
  if (target.filename().empty() || target.filename() == "." || target.filename() == "..")
    fail<ConfigError>(name, "names no folder of its own, expected the name of a new folder");
  if (!source.empty() && fs::weakly_canonical(target, code) == fs::weakly_canonical(source, code))
    fail<ConfigError>(name, "is the folder that the weights are read from, expected another one");
  check_output_folder(target);
  if (fs::is_symlink(fs::symlink_status(target, code)))
    fail<ConfigError>(name, "is a link to {}, expected a folder that is there, or a new one",
                      fs::read_symlink(target, code).string());
  with_write_errors(target, [&] { recover_folder(target); });
  check_only_own_files(target);
  try_to_move(target);
}

fs::path export_folder_of(const fs::path& target, i64 steps_done) {
  return target / fmt::format("{}{}", kExport, steps_done);
}

fs::path unfinished_folder(const fs::path& target) { return beside(target, "unfinished"); }

void begin_hf_folder(const fs::path& target) {
  const fs::path folder = unfinished_folder(target);
  with_write_errors(target, [&] { recover_folder(target); });
  std::error_code code;
  fs::remove_all(folder, code);
  fs::create_directories(folder, code);
  if (code) fail<IoError>(folder.string(), "cannot create folder: {}", code.message());
}

void finish_hf_folder(const fs::path& target, const std::vector<ShardFile>& shards,
                      const FolderContents& contents) {
  check_names(target, shards, contents.names);
  const fs::path folder = unfinished_folder(target);
  with_write_errors(target, [&] {
    const std::vector<ShardFile> named = rename_shards(folder, shards);
    if (named.size() > 1) write_index(folder, named);
    write_synced(folder / "config.json", contents.config.dump(2) + "\n");
    copy_carried(contents.source, folder);
    write_origin(folder, contents.origin);
    publish(folder, target);
  });
}

std::vector<ShardFile> write_hf_folder(const fs::path& target, const std::vector<OutTensor>& tensors,
                                       FolderContents contents, i64 most_bytes) {
  contents.names.clear();
  Bytes bytes = 0;
  for (const OutTensor& tensor : tensors) {
    contents.names.push_back(tensor.head.name);
    bytes += static_cast<Bytes>(tensor.head.bytes());
  }
  if (const std::string lacks = lack_of_room(target, bytes); !lacks.empty())
    fail<ConfigError>(target.string(), "{} of tensors: free that much, or name a folder on another disk",
                      lacks);
  begin_hf_folder(target);
  try {
    std::vector<ShardFile> shards = write_shards(unfinished_folder(target), "part", tensors, most_bytes);
    finish_hf_folder(target, shards, contents);
    return shards;
  } catch (...) {
    std::error_code code;
    fs::remove_all(unfinished_folder(target), code);
    throw;
  }
}

Json with_dtype(Json config, at::ScalarType dtype) {
  static const std::map<at::ScalarType, const char*> kNames = {
      {at::kDouble, "float64"}, {at::kFloat, "float32"}, {at::kBFloat16, "bfloat16"}, {at::kHalf, "float16"}};
  // transformers 5 writes dtype, 4 torch_dtype, which both read.
  config[config.contains("dtype") ? "dtype" : "torch_dtype"] = kNames.at(dtype);
  config.erase("quantization_config");
  return config;
}

}  // namespace hetermoe
