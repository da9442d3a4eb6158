#pragma once
#include <span>

#include "hetermoe/base/types.h"

namespace hetermoe {

/// How the rows of an attention part are divided: sequences of equal length, whose tokens attend to those
/// before them in the same sequence.
struct Sequences {
  i64 seq_len;
  i64 first = 0;  ///< position of the first row in its sequence: above 0 in a team alone
  /// Where documents are masked: tokens of each document of each sequence, one after another, whose tokens
  /// attend to their own document alone. Their sum is that of all tokens. Empty = sequences are not divided.
  /// Not owned.
  std::span<const i64> documents = {};
  Sequences(i64 length) : seq_len(length) {}  // NOLINT: a length is all that most callers have
  Sequences(i64 length, std::span<const i64> parts) : seq_len(length), documents(parts) {}
  /// So many rows are whole sequences.
  bool are_whole(i64 rows) const { return first == 0 && rows % seq_len == 0; }
  /// Sequences of which some rows are there.
  i64 count(i64 rows) const { return rows == 0 ? 0 : (first + rows - 1) / seq_len + 1; }
};

}  // namespace hetermoe
