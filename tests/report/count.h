#pragma once
#include <string>

namespace hetermoe {

/// How often a word stands in a text.
inline std::size_t count(const std::string& text, const std::string& word) {
  std::size_t number = 0;
  for (std::size_t at = text.find(word); at != std::string::npos; at = text.find(word, at + 1)) ++number;
  return number;
}

}  // namespace hetermoe
