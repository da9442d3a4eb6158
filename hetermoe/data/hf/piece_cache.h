#pragma once
#include <array>
#include <cstring>
#include <string_view>
#include <vector>

#include "hetermoe/base/checksum.h"
#include "hetermoe/base/hash.h"
#include "hetermoe/base/types.h"

namespace hetermoe::hf {

/// Tokens of pieces that occurred before. Each piece has one place in the table, where it replaces what was
/// there.
class PieceCache {
 public:
  static constexpr std::size_t kLongest = 30, kMostTokens = 8;
  PieceCache() : entries_(std::size_t{1} << 16) {}

  /// Adds the tokens of a piece, which `encode(piece, out)` makes where they are not known.
  template <class F>
  void encode(std::string_view piece, std::vector<i32>& out, const F& encode) {
    if (piece.size() > kLongest) return encode(piece, out);
    Entry& entry = entries_[splitmix64(checksum(piece.data(), piece.size())) & (entries_.size() - 1)];
    if (entry.size == piece.size() && std::memcmp(entry.piece.data(), piece.data(), piece.size()) == 0) {
      out.insert(out.end(), entry.tokens.begin(), entry.tokens.begin() + entry.count);
      return;
    }
    const std::size_t begin = out.size();
    encode(piece, out);
    const std::size_t count = out.size() - begin;
    if (count > kMostTokens) return;
    std::memcpy(entry.piece.data(), piece.data(), piece.size());
    std::copy(out.begin() + static_cast<std::ptrdiff_t>(begin), out.end(), entry.tokens.begin());
    entry.size = static_cast<unsigned char>(piece.size());
    entry.count = static_cast<unsigned char>(count);
  }

 private:
  struct alignas(64) Entry {
    std::array<char, kLongest> piece;
    unsigned char size = 0, count = 0;  // size 0: free
    std::array<i32, kMostTokens> tokens;
  };
  std::vector<Entry> entries_;
};

}  // namespace hetermoe::hf
