#include "hetermoe/base/checksum.h"
#include "hetermoe/base/error.h"
#include "hetermoe/data/hf/hf_tokenizer.h"
#include "hetermoe/data/hf/token_files.h"

namespace hetermoe {
namespace fs = std::filesystem;

Json hf::object_in(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return Json::object();
  Json json = read_json(path);
  return json.is_object() ? json : Json::object();
}

std::optional<std::string> hf::token_text(const Json& token) {
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string())
    return token["content"].get<std::string>();
  return std::nullopt;
}

namespace {

/// The eos_token that the files beside a tokenizer.json name.
std::optional<std::string> end_token_beside(const fs::path& file) {
  for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const Json json = hf::object_in(file.parent_path() / name);
    if (!json.contains("eos_token")) continue;
    if (std::optional<std::string> token = hf::token_text(json["eos_token"])) return token;
  }
  return std::nullopt;
}

}  // namespace

std::shared_ptr<const Tokenizer> read_hf_tokenizer(const std::string& path) {
  const std::string text = read_text(path);
  const SortedJson json = parse_sorted_json(text, path);
  try {
    return std::make_shared<hf::HfTokenizer>(json, path, end_token_beside(path),
                                             checksum(text.data(), text.size()));
  } catch (const ConfigError& error) {
    fail<ConfigError>("data.tokenizer",
                      "{}. tools/tokenize_text.py makes tokens of text by any tokenizer.json: docs/data.md",
                      error.what());
  }
}

}  // namespace hetermoe
