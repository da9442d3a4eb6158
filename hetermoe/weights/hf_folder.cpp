#include "hetermoe/weights/hf_folder.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <set>

namespace hetermoe {
namespace {

namespace fs = std::filesystem;

constexpr const char* kSingle = "model.safetensors";
constexpr const char* kIndex = "model.safetensors.index.json";

bool is_weights_file(const std::string& name) {
  return name.starts_with("model") && name.ends_with(".safetensors");
}

/// Names of the weight files that are there.
std::set<std::string> weight_files(const fs::path& folder) {
  std::set<std::string> names;
  std::error_code code;
  for (const auto& entry : fs::directory_iterator(folder, code)) {
    const std::string name = entry.path().filename().string();
    if (is_weights_file(name)) names.insert(name);
  }
  return names;
}

/// File by tensor, as the index has it.
std::map<std::string, std::string> read_index(const fs::path& path) {
  const SortedJson json = parse_sorted_json(read_text(path), path.string());
  const auto map = json.is_object() ? json.find("weight_map") : json.end();
  if (!json.is_object() || map == json.end() || !map->is_object())
    fail<ConfigError>(path.string(), "has no \"weight_map\", expected the file of every tensor");
  std::map<std::string, std::string> files;
  for (const auto& [tensor, file] : map->items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    // A name and no path: the index must not lead out of its folder.
    if (name.empty() || name != fs::path(name).filename())
      fail<ConfigError>(path.string(), "{}: got {}, expected the name of a file", tensor, file.dump());
    files[tensor] = name;
  }
  return files;
}

/// A checkpoint has its configuration twice, once with a checksum.
void check_config(const fs::path& folder, const Json& config) {
  std::error_code code;
  if (!fs::exists(folder / "checkpoint.json", code)) return;
  const Json info = read_json(folder / "checkpoint.json");
  if (info.is_object() && info.contains("config") && info.at("config") != config)
    fail<IoError>((folder / "config.json").string(),
                  "is not what checkpoint.json has of it: is it damaged? A changed configuration needs a "
                  "folder of its own (convert)");
}

/// As a process without parameters leaves one in a checkpoint.
bool holds_no_tensor(const fs::path& file) {
  try {
    return SafetensorsReader(file).heads().empty();
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool has_weights(const fs::path& folder) {
  std::error_code code;
  return fs::exists(folder / kIndex, code) || !weight_files(folder).empty();
}

HfFolder::HfFolder(const fs::path& folder) : folder_(folder) {
  std::error_code code;
  if (!fs::is_directory(folder_, code))
    fail<ConfigError>(folder_.string(), "is no folder, expected one with config.json and model.safetensors");
  if (!fs::exists(folder_ / "config.json", code))
    fail<ConfigError>(folder_.string(), "holds no config.json, expected a Hugging Face model folder");
  config_ = read_json(folder_ / "config.json");
  check_config(folder_, config_);
  const bool single = fs::exists(folder_ / kSingle, code), index = fs::exists(folder_ / kIndex, code);
  if (single && index) {
    fail<ConfigError>(folder_.string(), "holds {} and {}: which are the weights? Remove one", kSingle,
                      kIndex);
  }
  if (!single && !index) {
    fail<ConfigError>(
        folder_.string(),
        "holds neither {} nor {}. Weights in other formats (.bin, .pt, .gguf) are not read: save "
        "them as safetensors first",
        kSingle, kIndex);
  }
  if (single) {
    add_file(kSingle);
  } else {
    read_shards(folder_ / kIndex);
  }
  std::set<std::string> unused = weight_files(folder_);
  for (const auto& reader : readers_) unused.erase(reader->path().filename().string());
  std::erase_if(unused, [&](const std::string& name) { return holds_no_tensor(folder_ / name); });
  if (!unused.empty())
    fail<ConfigError>(folder_.string(), "{} {} not part of the model: {} names {}", fmt::join(unused, ", "),
                      unused.size() == 1 ? "is" : "are", single ? kSingle : kIndex,
                      single ? "no others" : "other files");
}

void HfFolder::add_file(const std::string& name) {
  readers_.push_back(std::make_unique<SafetensorsReader>(folder_ / name));
  const SafetensorsReader* reader = readers_.back().get();
  for (TensorHead& head : reader->heads()) {
    const auto [other, fresh] = tensors_.try_emplace(head.name, Place{head, reader});
    if (!fresh) {
      fail<ConfigError>(reader->path().string(), "{} is also in {}, expected it in one file", head.name,
                        other->second.file->path().filename().string());
    }
  }
}

void HfFolder::read_shards(const fs::path& index) {
  const std::map<std::string, std::string> file_of = read_index(index);
  std::set<std::string> files;
  for (const auto& [tensor, file] : file_of) files.insert(file);
  for (const std::string& file : files) {
    std::error_code code;
    if (!fs::exists(folder_ / file, code))
      fail<ConfigError>((folder_ / file).string(), "is missing: {} has tensors in it", kIndex);
    add_file(file);
  }
  for (const auto& [tensor, file] : file_of) {
    const auto found = tensors_.find(tensor);
    if (found == tensors_.end() || found->second.file->path().filename() != file)
      fail<ConfigError>((folder_ / file).string(), "has no tensor {}, which {} says is in it", tensor,
                        kIndex);
  }
  for (const auto& [tensor, place] : tensors_) {
    if (file_of.count(tensor) == 0)
      fail<ConfigError>(index.string(), "does not name {}, which is in {}", tensor,
                        place.file->path().filename().string());
  }
}

std::vector<fs::path> HfFolder::files() const {
  std::vector<fs::path> out;
  for (const auto& reader : readers_) out.push_back(reader->path());
  return out;
}

i64 HfFolder::bytes() const {
  i64 sum = 0;
  for (const auto& reader : readers_) sum += reader->size();
  return sum;
}

std::vector<TensorHead> HfFolder::heads() const {
  std::vector<TensorHead> out;
  for (const auto& [name, place] : tensors_) out.push_back(place.head);
  return out;
}

const HfFolder::Place& HfFolder::place(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  HM_CHECK(found != tensors_.end(), "{} has no tensor {}", folder_.string(), tensor);
  return found->second;
}

const TensorHead& HfFolder::head(const std::string& tensor) const { return place(tensor).head; }
const fs::path& HfFolder::file_of(const std::string& tensor) const { return place(tensor).file->path(); }
at::Tensor HfFolder::map(const std::string& tensor) const { return place(tensor).file->map(tensor); }

}  // namespace hetermoe
