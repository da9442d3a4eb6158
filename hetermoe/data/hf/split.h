#pragma once
#include <string>
#include <vector>

#include "hetermoe/data/hf/pattern.h"
#include "hetermoe/data/hf/pre_tokenizer.h"

namespace hetermoe::hf {

/// The place of a pattern's matches: a piece of its own, left out, a piece together with those beside it, the
/// end of the piece before, the beginning of the piece after.
enum class SplitBehavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

/// Throws ConfigError for another name.
SplitBehavior read_behavior(const Part& part, const char* key);

/// Cuts at the matches of a pattern, or with `invert` at what lies between them.
class SplitStep : public PreTokenizer {
 public:
  SplitStep(Pattern pattern, SplitBehavior behavior, bool invert = false)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void split(std::string_view text, bool at_start, PieceSink& out) const override;

  /// Whether split_range() may be used: what becomes of a match does not depend on those before it.
  bool divides() const {
    return behavior_ == SplitBehavior::kIsolated || behavior_ == SplitBehavior::kRemoved;
  }
  /// As split(), for the matches from `from` on until one ends at `to` or later. Returns where that was, else
  /// the size of the text. `from` stands for the end of a match, or the begin of the text.
  std::size_t split_range(std::string_view text, bool at_start, std::size_t from, std::size_t to,
                          PieceSink& out) const;

 private:
  struct Stretch {
    std::size_t begin, end;
    bool matched;
  };
  std::vector<Stretch> stretches(std::string_view text) const;
  void split_merged(std::string_view text, bool at_start, PieceSink& out) const;

  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

}  // namespace hetermoe::hf
