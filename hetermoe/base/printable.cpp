#include "hetermoe/base/printable.h"

#include <fmt/format.h>

namespace hetermoe {
namespace {

/// Bytes of the control character that begins at `at`, 0 = none. Those of C1 (U+0080 to U+009F), which
/// terminals obey as well, have two bytes in UTF-8.
std::size_t control_length(std::string_view text, std::size_t at) {
  const auto byte = static_cast<unsigned char>(text[at]);
  if (byte < 0x20 || byte == 0x7f) return 1;
  if (byte != 0xc2 || at + 1 == text.size()) return 0;
  const auto next = static_cast<unsigned char>(text[at + 1]);
  return next >= 0x80 && next < 0xa0 ? 2 : 0;
}

std::string escape(std::string_view character) {
  if (character == "\n") return "\\n";
  if (character == "\t") return "\\t";
  if (character == "\r") return "\\r";
  std::string out;
  for (const char c : character) out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return out;
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t control = kept.find(text[at]) == std::string_view::npos ? control_length(text, at) : 0;
    const std::size_t length = control == 0 ? 1 : control;
    out += control == 0 ? std::string(1, text[at]) : escape(text.substr(at, length));
    at += length;
  }
  return out;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, ""); }
std::string printable_lines(std::string_view text) { return escaped(text, "\n\t"); }

bool is_printable(std::string_view text) {
  for (std::size_t at = 0; at < text.size(); ++at) {
    if (control_length(text, at) > 0) return false;
  }
  return true;
}

}  // namespace hetermoe
