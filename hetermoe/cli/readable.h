#pragma once
#include <string>

namespace hetermoe {

/// The text with U+FFFD for bytes that are no UTF-8: tokens may begin or end within a character, which
/// neither JSON nor a terminal takes.
std::string valid_utf8(const std::string& text);

}  // namespace hetermoe
