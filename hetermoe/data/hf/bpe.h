#pragma once
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "hetermoe/data/hf/merge_table.h"
#include "hetermoe/data/hf/part.h"

namespace hetermoe::hf {

struct TextHash : std::hash<std::string_view> {
  using is_transparent = void;
};
using IdsByText = std::unordered_map<std::string, i32, TextHash, std::equal_to<>>;

/// The "model" of a file: byte-pair encoding. Thread-safe.
class Bpe {
 public:
  /// byte_level: the vocabulary is of bytes, each written as a character. Throws ConfigError for what is not
  /// known, and for merges of tokens that the vocabulary lacks.
  Bpe(const Part& model, bool byte_level);

  /// Adds the tokens of a piece: of bytes where the model is of bytes, else of valid UTF-8.
  void encode(std::string_view piece, std::vector<i32>& out) const;

  /// A token by its text in the file.
  std::optional<i32> token(const std::string& text) const;
  const IdsByText& vocabulary() const { return written_; }

 private:
  void read_vocabulary(const Part& model);
  void read_merges(const Part& model);
  void read_unknown(const Part& model);
  std::string add_merge(std::string_view left, std::string_view right, i32 rank);
  void note_crossing(std::string_view left, std::string_view right);

  i32 rank_of(i32 left, i32 right) const;
  void encode_part(std::string_view part, std::vector<i32>& out) const;
  std::vector<i32> first_tokens(std::string_view part) const;
  void add_unknown(std::string_view character, std::vector<i32>& out, std::optional<i32>& unknown) const;
  void merge_few(std::vector<i32>& tokens) const;
  void merge_many(std::vector<i32>& tokens) const;
  bool may_cross(std::string_view text, std::size_t at) const;

  bool byte_level_, ignore_merges_ = false, fuse_unknown_ = false, byte_fallback_ = false;
  bool cuts_ = false;             // pieces may be cut where no merge crosses
  IdsByText written_;             // by the text in the file
  IdsByText by_text_;             // by the text that it stands for: of bytes, or the same
  std::array<i32, 256> of_byte_;  // with byte_level the token of each byte, else that of <0xNN>; -1 = none
  std::optional<i32> unknown_;
  std::vector<i32> merged_;  // [rank] token
  MergeTable merges_{0};
  std::vector<bool> crossing_;  // by a hash of the characters on both sides
};

}  // namespace hetermoe::hf
