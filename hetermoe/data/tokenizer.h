#pragma once
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// Tokens of text and back. Thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<i64> encode(std::string_view text) const = 0;
  /// What the tokens stand for; a token that it does not have becomes <NUMBER>.
  virtual std::string decode(std::span<const i64> tokens) const = 0;
  /// What the name of a special token stands for: that token, or with bytes its spelling. Empty = there is no
  /// such token.
  virtual std::vector<i64> encode_special(std::string_view name) const = 0;
  virtual i64 vocab_size() const = 0;
  virtual std::optional<i64> end_token() const = 0;  ///< what ends a text, where there is such a token
};

/// `name`: bytes, the path of a SentencePiece model, or a folder that find_tokenizer() knows. Throws
/// ConfigError for what it does not know, IoError for a file that cannot be read.
std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name);

/// What makes tokens for the model of a Hugging Face folder or a checkpoint, as data.tokenizer names it: its
/// tokenizer.model, else its tokenizer.json (which make_tokenizer() refuses), else that of the job that left
/// it, else bytes where its vocabulary has 256 tokens. Empty = the folder does not tell.
std::string find_tokenizer(const std::filesystem::path& folder);

/// A tokenizer.json, by its name.
bool is_hf_tokenizer(const std::string& name);
/// Throws ConfigError that says how tools/tokenize_text.py makes tokens of these files, or conversations.
[[noreturn]] void refuse_hf_tokenizer(const std::string& name, const std::vector<std::string>& files,
                                      bool conversations);

/// A SentencePiece model (FILE.model). Throws IoError, and ConfigError in a build without libsentencepiece.
std::shared_ptr<const Tokenizer> read_sentencepiece(const std::string& path);

}  // namespace hetermoe
