#include "hetermoe/data/tokenizer.h"

#include <fstream>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"

namespace hetermoe {
namespace fs = std::filesystem;
namespace {

class ByteTokenizer : public Tokenizer {
 public:
  std::vector<i64> encode(std::string_view text) const override {
    std::vector<i64> out;
    out.reserve(text.size());
    for (const char c : text) out.push_back(static_cast<unsigned char>(c));
    return out;
  }
  std::vector<i64> encode_special(std::string_view name) const override { return encode(name); }
  std::string decode(std::span<const i64> tokens) const override {
    std::string out;
    for (const i64 token : tokens) {
      if (token >= 0 && token < 256)
        out.push_back(static_cast<char>(token));
      else
        out += fmt::format("<{}>", token);
    }
    return out;
  }
  i64 vocab_size() const override { return 256; }
  std::optional<i64> end_token() const override { return std::nullopt; }
};

/// A JSON file as far as there is one.
Json json_of_folder(const fs::path& path) {
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) return nullptr;
  std::ifstream in(path);
  return Json::parse(in, nullptr, /*allow_exceptions=*/false);
}

/// By which tokenizer a run learned that left a folder or a checkpoint; empty = it does not say.
std::string tokenizer_of_run(const fs::path& folder) {
  for (const char* name : {"hetermoe.json", "checkpoint.json"}) {
    const Json json = json_of_folder(folder / name);
    const Json::json_pointer key("/job/data/tokenizer");
    if (!json.is_object() || !json.contains(key) || !json[key].is_string()) continue;
    const std::string found = json[key].get<std::string>();
    std::error_code ignored;
    if (!fs::is_directory(found, ignored)) return found;  // else a folder that did not tell either
  }
  return "";
}

}  // namespace

std::string find_tokenizer(const fs::path& folder) {
  std::error_code ignored;
  for (const char* name : {"tokenizer.model", "tokenizer.json"}) {
    if (fs::is_regular_file(folder / name, ignored)) return (folder / name).string();
  }
  if (const std::string of_run = tokenizer_of_run(folder); !of_run.empty()) return of_run;
  const Json config = json_of_folder(folder / "config.json");
  const bool is_of_bytes = config.is_object() && config.contains("vocab_size") && config["vocab_size"] == 256;
  return is_of_bytes ? "bytes" : "";
}

std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>();
  if (fs::path(name).extension() == ".model") return read_sentencepiece(name);
  if (fs::path(name).extension() == ".json") return read_hf_tokenizer(name);
  std::error_code ignored;
  if (fs::is_directory(name, ignored)) {
    const std::string found = find_tokenizer(name);
    if (!found.empty()) return make_tokenizer(found);
    fail<ConfigError>(
        "data.tokenizer",
        "{} has no tokenizer, and its vocabulary is not that of bytes: expected "
        "--data.tokenizer FILE.model or tokenizer.json, bytes if these are its tokens, or files of tokens in "
        "data.paths",
        name);
  }
  fail<ConfigError>("data.tokenizer",
                    "got {}, expected bytes, a SentencePiece model (FILE.model) or a tokenizer.json", name);
}

std::shared_ptr<const Tokenizer> try_tokenizer(const std::string& name) {
  try {
    return make_tokenizer(name);
  } catch (const ConfigError&) {
    return nullptr;
  }
}

}  // namespace hetermoe
