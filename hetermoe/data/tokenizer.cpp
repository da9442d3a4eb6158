#include "hetermoe/data/tokenizer.h"

#include <filesystem>

#include "hetermoe/base/error.h"

namespace hetermoe {
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

}  // namespace

std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name) {
  if (name == "bytes") return std::make_shared<ByteTokenizer>();
  const std::filesystem::path path(name);
  if (path.extension() == ".model") return read_sentencepiece(name);
  if (path.extension() == ".json") {
    fail<ConfigError>("data.tokenizer",
                      "{} is a tokenizer of Hugging Face, which this program does not read: make tokens with "
                      "tools/tokenize_text.py and name the .idx in data.paths",
                      name);
  }
  fail<ConfigError>("data.tokenizer", "got {}, expected bytes or a SentencePiece model (FILE.model)", name);
}

}  // namespace hetermoe
