#pragma once
#include <memory>
#include <span>
#include <vector>

#include "hetermoe/data/token_array.h"

namespace hetermoe {

/// Tokens [begin, end).
struct TokenSpan {
  i64 begin = 0, end = 0;
  bool operator==(const TokenSpan&) const = default;
};

/// Tokens of one array after another, as one, where documents begin, and which tokens are counted in the loss
/// (all that are not named otherwise). Copies and parts share them.
class TokenStream {
 public:
  TokenStream()
      : starts_(std::make_shared<std::vector<i64>>()),
        uncounted_(std::make_shared<std::vector<TokenSpan>>()) {}
  /// starts: of documents in `tokens`. uncounted: ascending and apart. Not for a part of a stream.
  void append(const TokenArray& tokens, std::span<const i64> starts,
              std::span<const TokenSpan> uncounted = {});

  i64 size() const { return size_; }
  /// Tokens [first, first + count).
  void copy(i64 first, i64 count, i64* out) const;
  std::vector<i64> tokens(i64 first, i64 count) const;
  TokenStream part(i64 first, i64 count) const;

  /// Documents that begin in the stream.
  i64 num_documents() const { return end_document() - first_document(); }
  /// Token with which such a document begins.
  i64 document(i64 index) const;
  /// out[i] = 1 where a document begins at token first + i, else 0.
  void mark_starts(i64 first, i64 count, i64* out) const;

  bool counts_all() const { return uncounted_->empty(); }
  /// out[i] = 1 where token first + i is counted, else 0.
  void mark_counted(i64 first, i64 count, i64* out) const;
  i64 num_counted(i64 first, i64 count) const;

  bool mapped() const;
  /// Distinguishes streams, also by their counted tokens. For tokens in memory it covers all bytes; for
  /// mapped files, which may be huge, their sizes and samples.
  u64 checksum() const;

 private:
  struct Piece {
    TokenArray tokens;
    i64 begin;  ///< in the whole stream
  };
  i64 first_document() const;
  i64 end_document() const;
  /// Hands on the parts of [first, first + count) that are not counted, from `first` on.
  template <class F>
  void for_each_uncounted(i64 first, i64 count, const F& take) const;

  std::vector<Piece> pieces_;
  std::shared_ptr<std::vector<i64>> starts_;           // of the whole stream
  std::shared_ptr<std::vector<TokenSpan>> uncounted_;  // of the whole stream
  i64 first_ = 0, size_ = 0;                           // of this part
};

}  // namespace hetermoe
