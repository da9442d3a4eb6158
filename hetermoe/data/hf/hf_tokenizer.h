#pragma once
#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "hetermoe/data/hf/added_tokens.h"
#include "hetermoe/data/hf/bpe.h"
#include "hetermoe/data/hf/decoder.h"
#include "hetermoe/data/hf/piece_cache.h"
#include "hetermoe/data/hf/post_processor.h"
#include "hetermoe/data/hf/pre_tokenizer.h"
#include "hetermoe/data/tokenizer.h"

namespace hetermoe::hf {

/// The tokenizer of a tokenizer.json with a model of type BPE: the ids are those of the package `tokenizers`.
/// Bytes that are no UTF-8 are read as U+FFFD.
class HfTokenizer : public Tokenizer {
 public:
  /// json: a whole file. where: what errors begin with, and the file beside which the end token is looked
  /// for. Throws ConfigError for what is damaged, or not known.
  HfTokenizer(const SortedJson& json, const std::string& where, std::optional<std::string> end_token,
              u64 fingerprint = 0);

  std::vector<i64> encode(std::string_view text) const override { return encode_all(text, true); }
  std::vector<i64> encode_inside(std::string_view text) const override { return encode_all(text, false); }
  std::vector<i64> begin_tokens() const override { return frame_.before; }
  std::string decode(std::span<const i64> tokens) const override;
  std::vector<i64> encode_special(std::string_view name) const override;
  u64 fingerprint() const override { return fingerprint_; }
  i64 vocab_size() const override { return static_cast<i64>(texts_.size()); }
  std::optional<i64> end_token() const override { return end_token_; }
  const Frame& frame() const { return frame_; }

 private:
  class Encoding;
  void read_tokens(const Part& file);
  void add_text(i64 id, const std::string& text);
  std::string decode_known(std::vector<std::string> tokens) const;
  std::vector<i64> encode_all(std::string_view text, bool at_start) const;
  void encode_divided(std::string_view text, bool at_start, std::vector<i32>& out) const;
  std::unique_ptr<PieceCache> take_cache() const;
  void give_back(std::unique_ptr<PieceCache> cache) const;

  Normalizers normalizers_;
  PreTokenizers pre_tokenizers_;
  std::unique_ptr<const Bpe> model_;
  Frame frame_;
  bool has_decoder_ = false;
  Decoders decoders_;
  TokenFinder raw_finder_, normalized_finder_;
  std::unordered_map<std::string, i64> added_;     // by content
  std::vector<std::optional<std::string>> texts_;  // by id
  std::optional<i64> end_token_;
  u64 fingerprint_;
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<PieceCache>> caches_;  // of no thread at present; guarded by mutex_
};

}  // namespace hetermoe::hf
