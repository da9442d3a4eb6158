#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "hetermoe/base/types.h"

// Texts as Python's str has them: in characters, not bytes.
namespace hetermoe::jinja {

std::vector<std::string_view> characters_of(std::string_view text);
i64 num_characters(std::string_view text);
/// Without characters at its ends that are blanks (`characters` empty) or among `characters`.
std::string strip(std::string_view text, std::string_view characters, bool left, bool right);
std::string upper(std::string_view text);
std::string lower(std::string_view text);
/// The first letter large, all others small; with `words` the first of each word.
std::string capitalized(std::string_view text, bool words);
std::string replaced(std::string_view text, std::string_view old, std::string_view by, i64 most);
/// most < 0 = all. An empty `separator` stands for runs of blanks.
std::vector<std::string> split(std::string_view text, std::string_view separator, i64 most);
std::vector<std::string> split_from_right(std::string_view text, std::string_view separator, i64 most);
std::vector<std::string> lines_of(std::string_view text);
/// Python's repr() of a number and of a text.
std::string float_repr(double value);
std::string text_repr(std::string_view text);

}  // namespace hetermoe::jinja
