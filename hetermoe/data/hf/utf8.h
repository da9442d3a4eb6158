#pragma once
#include <string>
#include <string_view>

#include "hetermoe/base/types.h"

// Characters of UTF-8.
namespace hetermoe::hf {

struct Character {
  i32 code;          ///< Unicode code point; -1 where the bytes are no UTF-8
  std::size_t size;  ///< bytes, at least 1
};
/// The character with which a text that is not empty begins.
Character first_character(std::string_view text);

/// Bytes of the text before the first that is no UTF-8.
std::size_t valid_prefix(std::string_view text);

/// Bytes of the last character of a valid text that is not empty.
std::size_t last_character_size(std::string_view text);

/// Code point of a character as UTF-8, added to a text.
void append_character(i32 code, std::string& out);

/// Unicode's property White_Space.
bool is_white_space(i32 code);

}  // namespace hetermoe::hf
