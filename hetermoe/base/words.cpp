#include "hetermoe/base/words.h"

#include <fmt/format.h>

#include <algorithm>

namespace hetermoe {

std::string plural_of(std::string_view noun) {
  const std::string word(noun);
  if (word.ends_with("matrix")) return word.substr(0, word.size() - 1) + "ces";
  for (const char* hiss : {"s", "x", "ch", "sh"}) {
    if (word.ends_with(hiss)) return word + "es";
  }
  const bool is_vowel_before_y =
      word.size() < 2 || std::string_view("aeiou").find(word[word.size() - 2]) != std::string_view::npos;
  if (word.ends_with('y') && !is_vowel_before_y) return word.substr(0, word.size() - 1) + "ies";
  return word + "s";
}

std::string counted(i64 count, std::string_view noun) {
  return fmt::format("{} {}", count, count == 1 ? std::string(noun) : plural_of(noun));
}

std::vector<std::string> cut_at_commas(std::string_view text) {
  std::vector<std::string> parts;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t comma = std::min(text.find(',', begin), text.size());
    parts.emplace_back(text.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return parts;
}

}  // namespace hetermoe
