#include "hetermoe/data/hf/bpe.h"

#include <limits>

#include "hetermoe/base/error.h"
#include "hetermoe/base/index.h"
#include "hetermoe/data/hf/byte_level.h"
#include "hetermoe/data/hf/utf8.h"

namespace hetermoe::hf {
namespace {

constexpr std::size_t kCrossings = 1 << 20;  // bits; two characters that share one are cut less often
constexpr i32 kMostMerges = 1 << 30;

std::size_t crossing_of(i32 left, i32 right) {
  return splitmix64(static_cast<u64>(left) << 32 | static_cast<u64>(right)) & (kCrossings - 1);
}

/// "left right" or ["left", "right"]; nothing where it is neither.
std::optional<std::pair<std::string_view, std::string_view>> read_pair(const SortedJson& entry) {
  const auto text = [](const SortedJson& value) {
    return std::string_view(value.get_ref<const std::string&>());
  };
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string())
    return std::pair(text(entry[0]), text(entry[1]));
  if (!entry.is_string()) return std::nullopt;
  const std::size_t blank = text(entry).find(' ');
  if (blank == std::string_view::npos || text(entry).find(' ', blank + 1) != std::string_view::npos)
    return std::nullopt;
  return std::pair(text(entry).substr(0, blank), text(entry).substr(blank + 1));
}

}  // namespace

Bpe::Bpe(const Part& model, bool byte_level) : byte_level_(byte_level) {
  const bool is_bpe = !model.has("type") || model.type() == "BPE";
  if (!is_bpe) model.refuse("type", "BPE");
  model.only({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
              "byte_fallback", "ignore_merges", "vocab", "merges"});
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    if (!model.text(key, "").empty()) model.refuse(key, "nothing");
  }
  if (model.has("dropout") && model.at("dropout") != 0) model.refuse("dropout", "nothing");
  ignore_merges_ = model.flag("ignore_merges", false);
  read_vocabulary(model);
  read_unknown(model);
  read_merges(model);
}

void Bpe::read_vocabulary(const Part& model) {
  const SortedJson& vocabulary = model.at("vocab");
  if (!vocabulary.is_object()) model.refuse("vocab", "an object of tokens and their numbers");
  const Part part = model.object("vocab");
  written_.reserve(vocabulary.size());
  for (const auto& [text, number] : vocabulary.items()) {
    if (!is_token_number(number))
      fail<ConfigError>(part.where(), "the token {} has {}, expected its number", text, shown(number));
    written_[text] = number.get<i32>();
  }
  if (!byte_level_) return;
  for (const auto& [text, number] : written_) {
    if (const std::optional<std::string> bytes = bytes_of_characters(text)) by_text_[*bytes] = number;
  }
}

void Bpe::read_unknown(const Part& model) {
  fuse_unknown_ = model.flag("fuse_unk", false);
  byte_fallback_ = model.flag("byte_fallback", false);
  if (model.has("unk_token")) {
    unknown_ = token(model.text("unk_token"));
    if (!unknown_) model.refuse("unk_token", "a token of the vocabulary");
  }
  of_byte_.fill(-1);
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const std::string text =
        byte_level_ ? std::string(1, static_cast<char>(byte)) : fmt::format("<0x{:02X}>", byte);
    const IdsByText& ids = byte_level_ ? by_text_ : written_;
    if (const auto found = ids.find(text); found != ids.end()) of_byte_[byte] = found->second;
  }
  const bool has_all = std::find(of_byte_.begin(), of_byte_.end(), -1) == of_byte_.end();
  if (byte_level_ && byte_fallback_ && !has_all)
    model.refuse("byte_fallback", "false, or with ByteLevel a token for each byte");
  cuts_ = !byte_level_ && (byte_fallback_ ? has_all : !unknown_ || !fuse_unknown_);
}

void Bpe::read_merges(const Part& model) {
  const SortedJson& list = model.at("merges");
  if (!list.is_array()) model.refuse("merges", "a list");
  if (list.size() >= idx(kMostMerges)) model.refuse("merges", "fewer than 2^30");
  merges_ = MergeTable(list.size());
  merged_.resize(list.size());
  crossing_.resize(cuts_ ? kCrossings : 0);
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto where = [&] { return fmt::format("{} merges[{}]", model.where(), i); };
    const auto pair = read_pair(list[i]);
    if (!pair) fail<ConfigError>(where(), "is {}, expected two tokens", shown(list[i]));
    const std::string lacking = add_merge(pair->first, pair->second, static_cast<i32>(i));
    if (!lacking.empty())
      fail<ConfigError>(where(), "needs the token {}, expected it in the vocabulary", lacking);
  }
}

/// Returns the token that the vocabulary lacks, if there is one.
std::string Bpe::add_merge(std::string_view left, std::string_view right, i32 rank) {
  const std::string both = std::string(left).append(right);
  std::array<i32, 3> ids{};
  const std::array<std::string_view, 3> texts = {left, right, both};
  for (std::size_t i = 0; i < texts.size(); ++i) {
    const auto found = written_.find(texts[i]);
    if (found == written_.end()) return texts[i].empty() ? "\"\"" : std::string(texts[i]);
    ids[i] = found->second;
  }
  merged_[idx(rank)] = ids[2];
  merges_.set(ids[0], ids[1], {rank, ids[2]});
  if (cuts_ && !left.empty() && !right.empty()) note_crossing(left, right);
  return "";
}

void Bpe::note_crossing(std::string_view left, std::string_view right) {
  const i32 before = first_character(left.substr(left.size() - last_character_size(left))).code;
  crossing_[crossing_of(before, first_character(right).code)] = true;
}

std::optional<i32> Bpe::token(const std::string& text) const {
  const auto found = written_.find(text);
  return found == written_.end() ? std::nullopt : std::optional<i32>(found->second);
}

bool Bpe::may_cross(std::string_view text, std::size_t at) const {
  const std::size_t before = last_character_size(text.substr(0, at));
  return crossing_[crossing_of(first_character(text.substr(at - before)).code,
                               first_character(text.substr(at)).code)];
}

void Bpe::encode(std::string_view piece, std::vector<i32>& out) const {
  if (ignore_merges_) {
    const IdsByText& ids = byte_level_ ? by_text_ : written_;
    if (const auto found = ids.find(piece); found != ids.end()) return out.push_back(found->second);
  }
  std::size_t begin = 0;
  if (cuts_) {
    for (std::size_t at = first_character(piece).size; at < piece.size();
         at += first_character(piece.substr(at)).size) {
      if (may_cross(piece, at)) continue;
      encode_part(piece.substr(begin, at - begin), out);
      begin = at;
    }
  }
  encode_part(piece.substr(begin), out);
}

void Bpe::encode_part(std::string_view part, std::vector<i32>& out) const {
  constexpr std::size_t kFew = 64;  // up to here looking at all pairs is faster than a queue
  std::vector<i32> tokens = first_tokens(part);
  if (tokens.size() <= kFew)
    merge_few(tokens);
  else
    merge_many(tokens);
  out.insert(out.end(), tokens.begin(), tokens.end());
}

std::vector<i32> Bpe::first_tokens(std::string_view part) const {
  std::vector<i32> out;
  std::optional<i32> unknown;  // not added yet: it may become one with the next
  const auto add_known = [&](i32 token) {
    if (unknown) out.push_back(*unknown);
    unknown.reset();
    out.push_back(token);
  };
  for (std::size_t at = 0; at < part.size();) {
    const std::size_t size = byte_level_ ? 1 : first_character(part.substr(at)).size;
    const std::string_view character = part.substr(at, size);
    at += size;
    if (byte_level_) {
      const i32 token = of_byte_[static_cast<unsigned char>(character[0])];
      token >= 0 ? add_known(token) : add_unknown(character, out, unknown);
    } else if (const auto found = written_.find(character); found != written_.end()) {
      add_known(found->second);
    } else {
      add_unknown(character, out, unknown);
    }
  }
  if (unknown) out.push_back(*unknown);
  return out;
}

/// A character that the vocabulary lacks: its bytes, else the token for unknown ones, else nothing. Bytes do
/// not end a row of unknown ones, as in `tokenizers`.
void Bpe::add_unknown(std::string_view character, std::vector<i32>& out, std::optional<i32>& unknown) const {
  const bool has_bytes = !byte_level_ && byte_fallback_ &&
                         std::all_of(character.begin(), character.end(),
                                     [&](char c) { return of_byte_[static_cast<unsigned char>(c)] >= 0; });
  if (has_bytes) {
    for (const char c : character) out.push_back(of_byte_[static_cast<unsigned char>(c)]);
    return;
  }
  if (!unknown_) return;
  if (unknown && !fuse_unknown_) out.push_back(*unknown);
  unknown = unknown_;
}

i32 Bpe::rank_of(i32 left, i32 right) const {
  const Merge* merge = merges_.find(left, right);
  return merge == nullptr ? std::numeric_limits<i32>::max() : merge->rank;
}

void Bpe::merge_few(std::vector<i32>& tokens) const {
  constexpr i32 kNone = std::numeric_limits<i32>::max();
  if (tokens.size() < 2) return;
  std::array<i32, 64> ranks;
  std::size_t count = tokens.size();
  for (std::size_t i = 0; i + 1 < count; ++i) ranks[i] = rank_of(tokens[i], tokens[i + 1]);
  while (count > 1) {
    const i32* best = std::min_element(ranks.data(), ranks.data() + count - 1);
    if (*best == kNone) break;
    const std::size_t at = static_cast<std::size_t>(best - ranks.data());
    tokens[at] = merged_[idx(*best)];
    std::copy(tokens.begin() + at + 2, tokens.begin() + count, tokens.begin() + at + 1);
    if (at + 2 < count) std::copy(ranks.data() + at + 2, ranks.data() + count - 1, ranks.data() + at + 1);
    --count;
    if (at > 0) ranks[at - 1] = rank_of(tokens[at - 1], tokens[at]);
    if (at + 1 < count) ranks[at] = rank_of(tokens[at], tokens[at + 1]);
  }
  tokens.resize(count);
}

}  // namespace hetermoe::hf
