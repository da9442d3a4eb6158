#pragma once
#include <string>
#include <vector>

#include "hetermoe/data/hf/pattern.h"
#include "hetermoe/data/hf/pre_tokenizer.h"

namespace hetermoe::hf {

/// What becomes of the matches of a pattern: a piece of its own, left out, a piece together with those beside it,
/// the end of the piece before, the beginning of the piece after.
enum class SplitBehavior { kIsolated, kRemoved, kContiguous, kMergedWithPrevious, kMergedWithNext };

/// Throws ConfigError for another name.
SplitBehavior read_behavior(const Part& part, const char* key);

/// Cuts at the matches of a pattern, or with `invert` at what lies between them.
class SplitStep : public PreTokenizer {
 public:
  SplitStep(Pattern pattern, SplitBehavior behavior, bool invert = false)
      : pattern_(std::move(pattern)), behavior_(behavior), invert_(invert) {}
  void split(std::string_view text, bool at_start, PieceSink& out) const override;

 private:
  struct Stretch {
    std::size_t begin, end;
    bool matched;
  };
  std::vector<Stretch> stretches(std::string_view text) const;
  void split_at_once(std::string_view text, bool at_start, PieceSink& out) const;
  void split_merged(std::string_view text, bool at_start, PieceSink& out) const;

  Pattern pattern_;
  SplitBehavior behavior_;
  bool invert_;
};

}  // namespace hetermoe::hf
