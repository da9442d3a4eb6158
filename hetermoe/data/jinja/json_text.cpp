#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "hetermoe/data/hf/utf8.h"
#include "hetermoe/data/jinja/functions.h"
#include "hetermoe/data/jinja/text.h"

// As json.dumps of Python writes values.
namespace hetermoe::jinja {
namespace {

void append_ascii(i32 code, std::string& out) {
  if (code < 0x10000) {
    out += fmt::format("\\u{:04x}", code);
  } else {
    out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((code - 0x10000) >> 10),
                       0xDC00 + ((code - 0x10000) & 0x3FF));
  }
}

std::string quoted(const std::string& text, bool ascii) {
  std::string out = "\"";
  for (const std::string_view character : characters_of(text)) {
    const char c = character.front();
    const auto byte = static_cast<unsigned char>(c);
    static constexpr std::string_view kShort = "\"\\\n\r\t\b\f", kLetters = "\"\\nrtbf";
    if (const std::size_t found = kShort.find(c); found != std::string_view::npos)
      out += {'\\', kLetters[found]};
    else if (byte < 0x20)
      out += fmt::format("\\u{:04x}", byte);
    else if (ascii && byte >= 0x80)
      append_ascii(hf::first_character(character).code, out);
    else
      out += character;
  }
  return out + "\"";
}

class Writer {
 public:
  explicit Writer(const JsonStyle& style) : style_(style) {
    between_ = style.item.empty() ? (style.indent >= 0 ? "," : ", ") : style.item;
    after_key_ = style.key.empty() ? ": " : style.key;
  }

  void write(const Value& value, i64 depth) {
    if (const double* d = value.as<double>()) {
      out += std::isnan(*d) ? "NaN" : std::isinf(*d) ? (*d < 0 ? "-Infinity" : "Infinity") : float_repr(*d);
    } else if (const bool* b = value.as<bool>()) {
      out += *b ? "true" : "false";
    } else if (value.as<i64>()) {
      out += repr(value);
    } else if (value.is_none()) {
      out += "null";
    } else if (value.text()) {
      out += quoted(*value.text(), style_.ascii);
    } else if (const List* list = value.list(); list != nullptr && list->view == nullptr) {
      write_all("[]", list->items, depth, [&](const Value& item) { write(item, depth + 1); });
    } else if (const Dict* dict = value.dict()) {
      auto entries = dict->entries;
      if (style_.sort_keys)
        std::sort(entries.begin(), entries.end(),
                  [](const auto& a, const auto& b) { return a.first < b.first; });
      write_all("{}", entries, depth, [&](const auto& entry) {
        out += quoted(entry.first, style_.ascii) + after_key_;
        write(entry.second, depth + 1);
      });
    } else {
      throw RenderError("tojson of " + kind_of(value));
    }
  }

  std::string out;

 private:
  void new_line(i64 depth) {
    if (style_.indent < 0) return;
    out += '\n';
    for (i64 blanks = style_.indent * depth; blanks > 0; --blanks) out += ' ';
  }

  template <class Items, class F>
  void write_all(const char* brackets, const Items& items, i64 depth, const F& write_item) {
    out += brackets[0];
    bool first = true;
    for (const auto& item : items) {
      if (!std::exchange(first, false)) out += between_;
      new_line(depth + 1);
      write_item(item);
    }
    if (!items.empty()) new_line(depth);
    out += brackets[1];
  }

  const JsonStyle& style_;
  std::string between_, after_key_;
};

}  // namespace

std::string to_json_text(const Value& value, const JsonStyle& style) {
  Writer writer(style);
  writer.write(value, 0);
  return std::move(writer.out);
}

}  // namespace hetermoe::jinja
