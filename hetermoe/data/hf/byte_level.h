#pragma once
#include <optional>
#include <string>
#include <string_view>

namespace hetermoe::hf {

/// GPT-2's way to write bytes: each is a character that can be seen. The bytes that a text of such characters
/// stands for; nothing where another character is in it.
std::optional<std::string> bytes_of_characters(std::string_view text);

}  // namespace hetermoe::hf
