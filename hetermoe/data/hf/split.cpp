#include "hetermoe/data/hf/split.h"

#include <array>

#include "hetermoe/base/index.h"

namespace hetermoe::hf {
namespace {

constexpr std::array<const char*, 5> kNames = {"Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                               "MergedWithNext"};

void hand_on(std::string_view text, std::size_t begin, std::size_t end, bool at_start, PieceSink& out) {
  if (begin < end) out.take(text.substr(begin, end - begin), at_start && begin == 0);
}

}  // namespace

SplitBehavior read_behavior(const Part& part, const char* key) {
  const std::string name = part.text(key);
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (name == kNames[i]) return static_cast<SplitBehavior>(i);
  }
  part.refuse(key, fmt::format("{}", fmt::join(kNames, ", ")));
}

void SplitStep::split(std::string_view text, bool at_start, PieceSink& out) const {
  if (divides())
    split_range(text, at_start, 0, text.size(), out);
  else
    split_merged(text, at_start, out);
}

std::size_t SplitStep::split_range(std::string_view text, bool at_start, std::size_t from, std::size_t to,
                                   PieceSink& out) const {
  const bool removes = behavior_ == SplitBehavior::kRemoved;
  const bool takes_matches = !removes || invert_, takes_rest = !removes || !invert_;
  std::size_t done = from;
  Pattern::Match match;
  for (Matches matches(pattern_, text, from); matches.next(match);) {
    if (takes_rest) hand_on(text, done, match.begin, at_start, out);
    if (takes_matches) hand_on(text, match.begin, match.end, at_start, out);
    done = match.end;
    if (done >= to) return done;
  }
  if (takes_rest) hand_on(text, done, text.size(), at_start, out);
  return text.size();
}

std::vector<SplitStep::Stretch> SplitStep::stretches(std::string_view text) const {
  std::vector<Stretch> out;
  std::size_t done = 0;
  Pattern::Match match;
  for (Matches matches(pattern_, text); matches.next(match); done = match.end) {
    if (done != match.begin) out.push_back({done, match.begin, invert_});
    out.push_back({match.begin, match.end, !invert_});
  }
  if (done != text.size()) out.push_back({done, text.size(), invert_});
  return out;
}

void SplitStep::split_merged(std::string_view text, bool at_start, PieceSink& out) const {
  std::vector<Stretch> all = stretches(text), merged;
  const bool backwards = behavior_ == SplitBehavior::kMergedWithNext;
  if (backwards) std::reverse(all.begin(), all.end());
  bool before = false;
  for (const Stretch& each : all) {
    const bool joins =
        behavior_ == SplitBehavior::kContiguous ? each.matched == before : each.matched && !before;
    before = each.matched;
    if (!joins || merged.empty())
      merged.push_back(each);
    else if (backwards)
      merged.back().begin = each.begin;
    else
      merged.back().end = each.end;
  }
  if (backwards) std::reverse(merged.begin(), merged.end());
  for (const Stretch& each : merged) hand_on(text, each.begin, each.end, at_start, out);
}

}  // namespace hetermoe::hf
