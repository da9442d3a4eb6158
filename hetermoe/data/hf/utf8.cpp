#include "hetermoe/data/hf/utf8.h"

#include <utf8proc.h>

#include <cstring>
#include <string>

namespace hetermoe::hf {

Character first_character(std::string_view text) {
  const auto* bytes = reinterpret_cast<const utf8proc_uint8_t*>(text.data());
  if (bytes[0] < 0x80) return {bytes[0], 1};
  utf8proc_int32_t code = -1;
  const utf8proc_ssize_t size = utf8proc_iterate(bytes, static_cast<utf8proc_ssize_t>(text.size()), &code);
  if (size <= 0) return {-1, 1};
  return {code, static_cast<std::size_t>(size)};
}

std::size_t valid_prefix(std::string_view text) {
  constexpr u64 kHighBits = 0x8080808080808080;
  std::size_t at = 0;
  while (at < text.size()) {
    u64 word = kHighBits;
    if (at + 8 <= text.size()) std::memcpy(&word, text.data() + at, 8);
    if ((word & kHighBits) == 0) {
      at += 8;
      continue;
    }
    const Character next = first_character(text.substr(at));
    if (next.code < 0) return at;
    at += next.size;
  }
  return at;
}

std::size_t last_character_size(std::string_view text) {
  std::size_t size = 1;
  while (size < text.size() && (static_cast<unsigned char>(text[text.size() - size]) & 0xC0) == 0x80) ++size;
  return size;
}

void append_character(i32 code, std::string& out) {
  utf8proc_uint8_t bytes[4];
  const utf8proc_ssize_t size = utf8proc_encode_char(code, bytes);
  out.append(reinterpret_cast<const char*>(bytes), static_cast<std::size_t>(size));
}

bool is_white_space(i32 code) {
  return (code >= 0x09 && code <= 0x0D) || code == 0x20 || code == 0x85 || code == 0xA0 || code == 0x1680 ||
         (code >= 0x2000 && code <= 0x200A) || code == 0x2028 || code == 0x2029 || code == 0x202F ||
         code == 0x205F || code == 0x3000;
}

}  // namespace hetermoe::hf
