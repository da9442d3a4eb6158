#include "hetermoe/data/hf/replacement.h"

namespace hetermoe::hf {

Pattern read_pattern(const Part& part) {
  const Part pattern = part.object("pattern");
  pattern.only({"String", "Regex"});
  if (pattern.has("Regex")) return Pattern::of_file(pattern.text("Regex"), pattern.where());
  return Pattern::of_literal(pattern.text("String"), pattern.where());
}

std::string Replacement::apply(std::string text) const {
  std::string out;
  std::size_t done = 0;
  Pattern::Match match;
  for (Matches matches(pattern_, text); matches.next(match); done = match.end)
    out.append(text, done, match.begin - done).append(content_);
  if (done == 0 && out.empty()) return text;
  return out.append(text, done);
}

}  // namespace hetermoe::hf
