#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "hetermoe/data/hf/part.h"

// Cuts a text into pieces, of which each becomes tokens by itself.
namespace hetermoe::hf {

class SplitStep;

class PieceSink {
 public:
  virtual ~PieceSink() = default;
  /// piece: not empty, valid during the call. at_start: it begins where the whole text does.
  virtual void take(std::string_view piece, bool at_start) = 0;
};

/// Thread-safe.
class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  /// Hands on the pieces of a text in their order.
  virtual void split(std::string_view text, bool at_start, PieceSink& out) const = 0;
};

struct PreTokenizers {
  std::vector<std::unique_ptr<const PreTokenizer>> steps;  ///< each cuts the pieces of the one before
  /// The last step is ByteLevel: the vocabulary is of bytes, each written as a character (see byte_level.h).
  bool byte_level = false;

  void split(std::string_view text, bool at_start, PieceSink& out) const;
  /// The first step where SplitStep::split_range() serves for it; else null.
  const SplitStep* divided() const;
  /// The same of a stretch, by split_range() of divided(), which is not null.
  std::size_t split_range(std::string_view text, bool at_start, std::size_t from, std::size_t to,
                          PieceSink& out) const;
};

/// The "pre_tokenizer" of a file. Throws ConfigError for what is not known.
PreTokenizers read_pre_tokenizer(const Part& part);

}  // namespace hetermoe::hf
