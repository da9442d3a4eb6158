#pragma once
#include <string>
#include <string_view>

namespace hetermoe {

/// Text that a terminal shows and does not obey: control characters, line breaks and tabs among them, become
/// \n, \t and \x1b. For names and texts that come from outside.
std::string printable(std::string_view text);

/// As printable(), but line breaks and tabs stay: for messages of several lines.
std::string printable_lines(std::string_view text);

/// Whether printable() leaves the text as it is.
bool is_printable(std::string_view text);

}  // namespace hetermoe
