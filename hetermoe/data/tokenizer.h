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
  /// The same for a text that goes on after others: nothing is put before it that only begins a text.
  virtual std::vector<i64> encode_inside(std::string_view text) const { return encode(text); }
  /// With which the model's own tools begin a text, as <s>; encode() does not add them.
  virtual std::vector<i64> begin_tokens() const { return {}; }
  /// The text of the tokens; an unknown token becomes <NUMBER>.
  virtual std::string decode(std::span<const i64> tokens) const = 0;
  /// The tokens for the name of a special token: that token, or with bytes its spelling. Empty = there is no
  /// such token.
  virtual std::vector<i64> encode_special(std::string_view name) const = 0;
  virtual i64 vocab_size() const = 0;
  /// Tells tokenizers apart: a checksum of the file. 0 = it is of no file.
  virtual u64 fingerprint() const { return 0; }
  virtual std::optional<i64> end_token() const = 0;  ///< what ends a text, where there is such a token
};

/// `name`: bytes, the path of a SentencePiece model or of a tokenizer.json, or a folder that find_tokenizer()
/// knows. Throws ConfigError for what it does not know, IoError for a file that cannot be read.
std::shared_ptr<const Tokenizer> make_tokenizer(const std::string& name);
/// The same; null where it would throw ConfigError.
std::shared_ptr<const Tokenizer> try_tokenizer(const std::string& name);

/// The tokenizer for the model of a Hugging Face folder or a checkpoint, as data.tokenizer names it: its
/// tokenizer.model, else its tokenizer.json, else that of the job that wrote it, else bytes if its vocabulary
/// has 256 tokens. Empty = the folder has none.
std::string find_tokenizer(const std::filesystem::path& folder);

/// A SentencePiece model (FILE.model). Throws IoError, and ConfigError in a build without libsentencepiece.
std::shared_ptr<const Tokenizer> read_sentencepiece(const std::string& path);

/// A tokenizer.json of Hugging Face whose model is byte-pair encoding (see hf/hf_tokenizer.h). Its end token
/// is the eos_token of the tokenizer_config.json or special_tokens_map.json beside it. Throws IoError, and
/// ConfigError that names the part of the file that is damaged, or not known.
std::shared_ptr<const Tokenizer> read_hf_tokenizer(const std::string& path);

}  // namespace hetermoe
