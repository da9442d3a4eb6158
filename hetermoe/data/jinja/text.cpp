#include "hetermoe/data/jinja/text.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "hetermoe/data/hf/utf8.h"

namespace hetermoe::jinja {
namespace {

/// As str.isspace() has it.
bool is_blank(i32 code) { return hf::is_white_space(code) || (code >= 0x1C && code <= 0x1F); }

bool is_blank(std::string_view character) { return is_blank(hf::first_character(character).code); }

template <class F>
std::string mapped(std::string_view text, const F& map) {
  std::string out;
  for (const std::string_view character : characters_of(text)) {
    const hf::Character c = hf::first_character(character);
    if (c.code < 0)
      out += character;
    else
      map(c.code, out);
  }
  return out;
}

/// Letters that become two or three, as far as the languages of Europe have them.
void append_upper(i32 code, std::string& out) {
  if (code == 0xDF) {
    out += "SS";
  } else if (code >= 0xFB00 && code <= 0xFB06) {
    static const char* const kLigatures[] = {"FF", "FI", "FL", "FFI", "FFL", "ST", "ST"};
    out += kLigatures[code - 0xFB00];
  } else {
    hf::append_character(utf8proc_toupper(code), out);
  }
}

void append_lower(i32 code, std::string& out) { hf::append_character(utf8proc_tolower(code), out); }

bool is_letter(i32 code) {
  switch (utf8proc_category(code)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
      return true;
    default:
      return false;
  }
}

std::vector<std::string> split_at_blanks(std::string_view text, i64 most) {
  std::vector<std::string> out;
  const std::vector<std::string_view> all = characters_of(text);
  std::size_t i = 0;
  while (true) {
    while (i < all.size() && is_blank(all[i])) ++i;
    if (i == all.size()) return out;
    if (most >= 0 && static_cast<i64>(out.size()) == most) {
      const std::size_t begin = static_cast<std::size_t>(all[i].data() - text.data());
      out.push_back(strip(text.substr(begin), "", false, true));
      return out;
    }
    std::string word;
    for (; i < all.size() && !is_blank(all[i]); ++i) word += all[i];
    out.push_back(std::move(word));
  }
}

}  // namespace

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> out;
  while (!text.empty()) {
    const std::size_t size = hf::first_character(text).size;
    out.push_back(text.substr(0, size));
    text.remove_prefix(size);
  }
  return out;
}

i64 num_characters(std::string_view text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return static_cast<unsigned char>(c) < 0x80; }))
    return static_cast<i64>(text.size());
  return static_cast<i64>(characters_of(text).size());
}

std::string strip(std::string_view text, std::string_view characters, bool left, bool right) {
  const std::vector<std::string_view> all = characters_of(text), dropped = characters_of(characters);
  const auto drops = [&](std::string_view c) {
    return characters.empty() ? is_blank(c) : std::find(dropped.begin(), dropped.end(), c) != dropped.end();
  };
  std::size_t first = 0, last = all.size();
  while (left && first < last && drops(all[first])) ++first;
  while (right && last > first && drops(all[last - 1])) --last;
  std::string out;
  for (std::size_t i = first; i < last; ++i) out += all[i];
  return out;
}

std::string upper(std::string_view text) { return mapped(text, append_upper); }
std::string lower(std::string_view text) { return mapped(text, append_lower); }

std::string capitalized(std::string_view text, bool words) {
  bool begins = true;
  return mapped(text, [&](i32 code, std::string& out) {
    if (begins)
      hf::append_character(utf8proc_totitle(code), out);
    else
      append_lower(code, out);
    begins = words && !is_letter(code);
  });
}

std::string replaced(std::string_view text, std::string_view old, std::string_view by, i64 most) {
  std::string out;
  if (old.empty()) {  // before each character and at the end
    i64 done = 0;
    for (const std::string_view c : characters_of(text)) {
      if (most < 0 || done++ < most) out += by;
      out += c;
    }
    return most < 0 || done < most ? out + std::string(by) : out;
  }
  std::size_t at = 0;
  for (i64 done = 0; most < 0 || done < most; ++done) {
    const std::size_t found = text.find(old, at);
    if (found == std::string_view::npos) break;
    out += text.substr(at, found - at);
    out += by;
    at = found + old.size();
  }
  return out + std::string(text.substr(at));
}

std::vector<std::string> split(std::string_view text, std::string_view separator, i64 most) {
  if (separator.empty()) return split_at_blanks(text, most);
  std::vector<std::string> out;
  std::size_t at = 0;
  while (most < 0 || static_cast<i64>(out.size()) < most) {
    const std::size_t found = text.find(separator, at);
    if (found == std::string_view::npos) break;
    out.emplace_back(text.substr(at, found - at));
    at = found + separator.size();
  }
  out.emplace_back(text.substr(at));
  return out;
}

std::vector<std::string> split_from_right(std::string_view text, std::string_view separator, i64 most) {
  std::vector<std::string> out;
  while (most < 0 || static_cast<i64>(out.size()) < most) {
    const std::size_t found = text.rfind(separator);
    if (found == std::string_view::npos) break;
    out.emplace_back(text.substr(found + separator.size()));
    text = text.substr(0, found);
  }
  out.emplace_back(text);
  std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string> lines_of(std::string_view text) {
  const auto ends_line = [](i32 c) {
    return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
  };
  std::vector<std::string> out;
  std::string line;
  bool open = false;
  for (std::size_t i = 0; i < text.size();) {
    const hf::Character c = hf::first_character(text.substr(i));
    open = !ends_line(c.code);
    if (open)
      line += text.substr(i, c.size);
    else
      out.push_back(std::exchange(line, ""));
    i += c.size;
    if (c.code == '\r' && text.substr(i).starts_with('\n')) ++i;
  }
  if (open) out.push_back(line);
  return out;
}

std::string float_repr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string text_repr(std::string_view text) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string out(1, quote);
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == quote || c == '\\')
      out += std::string("\\") + c;
    else if (c == '\n' || c == '\r' || c == '\t')
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    else if (byte < 0x20 || byte == 0x7F)
      out += fmt::format("\\x{:02x}", byte);
    else
      out += c;
  }
  return out + quote;
}

}  // namespace hetermoe::jinja
