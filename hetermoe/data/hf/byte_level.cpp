#include "hetermoe/data/hf/byte_level.h"

#include <array>

#include "hetermoe/data/hf/utf8.h"

namespace hetermoe::hf {
namespace {

/// Bytes that Latin-1 shows stand for themselves; the others for U+0100 and later, in their order.
bool is_shown(i32 byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) || (byte >= 0xAE && byte <= 0xFF);
}

constexpr i32 kCharacters = 0x144;  // one more than the last

std::array<i32, kCharacters> byte_of_each_character() {
  std::array<i32, kCharacters> out;
  out.fill(-1);
  std::size_t other = 0x100;
  for (i32 byte = 0; byte < 256; ++byte)
    out[is_shown(byte) ? static_cast<std::size_t>(byte) : other++] = byte;
  return out;
}

}  // namespace

std::optional<std::string> bytes_of_characters(std::string_view text) {
  static const std::array<i32, kCharacters> kBytes = byte_of_each_character();
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const Character next = first_character(text.substr(at));
    if (next.code < 0 || next.code >= kCharacters || kBytes[static_cast<std::size_t>(next.code)] < 0)
      return std::nullopt;
    out.push_back(static_cast<char>(kBytes[static_cast<std::size_t>(next.code)]));
    at += next.size;
  }
  return out;
}

}  // namespace hetermoe::hf
