#include "hetermoe/data/jinja/lexer.h"

#include <array>
#include <cctype>
#include <string_view>

#include "hetermoe/base/error.h"
#include "hetermoe/data/hf/utf8.h"

namespace hetermoe::jinja {
namespace {

constexpr std::string_view kBlanks = " \t\n\r\f\v";

bool is_blank(char c) { return kBlanks.find(c) != std::string_view::npos; }
bool is_letter(char c) { return std::isalpha(static_cast<unsigned char>(c)) || c == '_'; }
bool is_digit(char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; }

/// Line breaks become \n, and one at the end is dropped.
std::string normalized(const std::string& source) {
  std::string out;
  for (std::size_t i = 0; i < source.size(); ++i) {
    if (source[i] == '\r' && i + 1 < source.size() && source[i + 1] == '\n') continue;
    out += source[i] == '\r' ? '\n' : source[i];
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

class Lexer {
 public:
  Lexer(const std::string& source, const std::string& where) : source_(normalized(source)), where_(where) {}

  std::vector<Token> run() {
    while (at_ < source_.size()) read_text();
    add(TokenKind::kEnd, "end of the template", at_);
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(std::size_t at, const std::string& text) const {
    fail<ConfigError>(where_, "{}: {}", to_text(place_of(at)), text);
  }

  Place place_of(std::size_t at) const {
    Place out;
    for (std::size_t i = 0; i < at; ++i) {
      ++out.column;
      if (source_[i] == '\n') ++out.line, out.column = 1;
    }
    return out;
  }

  /// Places are asked in ascending order.
  Place next_place(std::size_t at) {
    for (; counted_ < at; ++counted_) {
      ++place_.column;
      if (source_[counted_] == '\n') ++place_.line, place_.column = 1;
    }
    return place_;
  }

  void add(TokenKind kind, std::string text, std::size_t at) {
    out_.push_back({kind, std::move(text), next_place(at)});
  }

  bool sees(std::string_view text) const { return std::string_view(source_).substr(at_).starts_with(text); }

  std::size_t begin_of_tag() const {
    for (std::size_t i = at_; i + 1 < source_.size(); ++i) {
      if (source_[i] == '{' && (source_[i + 1] == '{' || source_[i + 1] == '%' || source_[i + 1] == '#'))
        return i;
    }
    return source_.size();
  }

  /// Text up to the next tag, and the tag.
  void read_text() {
    const std::size_t begin = at_, tag = begin_of_tag();
    if (tag == source_.size()) {
      at_ = tag;
      return add_text(begin, source_.substr(begin));
    }
    const char kind = source_[tag + 1];
    at_ = tag + 2;
    const char sign =
        at_ < source_.size() && (source_[at_] == '-' || source_[at_] == '+') ? source_[at_] : ' ';
    if (sign != ' ') ++at_;
    add_text(begin, text_before(begin, tag, sign, kind));
    if (kind == '#') return read_comment(tag);
    if (kind == '%' && is_raw()) refuse(tag, "raw is not here: write the text as a string");
    add(kind == '{' ? TokenKind::kPrintBegin : TokenKind::kTagBegin, kind == '{' ? "{{" : "{%", tag);
    read_tag(tag, kind == '{');
  }

  void add_text(std::size_t begin, const std::string& text) {
    if (!text.empty()) add(TokenKind::kText, text, begin);
  }

  std::string text_before(std::size_t begin, std::size_t tag, char sign, char kind) const {
    std::string text = source_.substr(begin, tag - begin);
    if (sign == '-') {
      const std::size_t last = text.find_last_not_of(kBlanks);
      return last == std::string::npos ? "" : text.substr(0, last + 1);
    }
    if (sign == '+' || kind == '{') return text;
    const std::size_t line = text.rfind('\n');
    if (line == std::string::npos && !line_begins_) return text;
    const std::size_t first = line == std::string::npos ? 0 : line + 1;
    return text.find_first_not_of(kBlanks, first) == std::string::npos ? text.substr(0, first) : text;
  }

  void skip_blanks() {
    while (at_ < source_.size() && is_blank(source_[at_])) ++at_;
  }

  /// After -%} all blanks are dropped, after %} and #} one line break.
  void after_tag(bool all, bool one) {
    const std::size_t before = at_;
    if (all) skip_blanks();
    if (one && !all && at_ < source_.size() && source_[at_] == '\n') ++at_;
    line_begins_ = at_ > before && source_[at_ - 1] == '\n';
  }

  void read_comment(std::size_t tag) {
    const std::size_t end = source_.find("#}", at_);
    if (end == std::string::npos) refuse(tag, "a comment that does not end: expected #}");
    const char sign = end > at_ ? source_[end - 1] : ' ';
    at_ = end + 2;
    after_tag(sign == '-', sign != '+');
  }

  bool is_raw() {
    std::size_t i = at_;
    while (i < source_.size() && is_blank(source_[i])) ++i;
    if (source_.compare(i, 3, "raw") != 0 || i + 3 >= source_.size()) return false;
    i += 3;
    while (i < source_.size() && is_blank(source_[i])) ++i;
    return source_.compare(i, 2, "%}") == 0 || source_.compare(i, 3, "-%}") == 0;
  }

  /// Up to the end of a tag; ends within brackets are none.
  void read_tag(std::size_t tag, bool prints) {
    const std::string_view end = prints ? "}}" : "%}";
    std::string open;
    while (true) {
      skip_blanks();
      if (at_ >= source_.size()) refuse(tag, fmt::format("a tag that does not end: expected {}", end));
      const char sign = source_[at_];
      const bool signs = sign == '-' || (sign == '+' && !prints);
      if (open.empty() &&
          (sees(end) || (signs && std::string_view(source_).substr(at_ + 1).starts_with(end)))) {
        add(prints ? TokenKind::kPrintEnd : TokenKind::kTagEnd, std::string(end), at_);
        const bool has_sign = !sees(end);
        at_ += has_sign ? 3 : 2;
        return after_tag(has_sign && sign == '-', !prints && !(has_sign && sign == '+'));
      }
      read_token(open);
    }
  }

  void read_token(std::string& open) {
    const char c = source_[at_];
    if (is_letter(c)) return read_name();
    if (is_digit(c)) return read_number();
    if (c == '\'' || c == '"') return read_string();
    static constexpr std::array<std::string_view, 25> kOperators = {
        "//", "**", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[",
        "]",  "(",  ")",  "{",  "}",  ">",  "<", "=", ".", ":", "|", ","};
    for (const std::string_view op : kOperators) {
      if (!sees(op)) continue;
      if (op == "(" || op == "[" || op == "{") open += op;
      if (op == ")" || op == "]" || op == "}") {
        const char opening = op == ")" ? '(' : op == "]" ? '[' : '{';
        if (!open.ends_with(opening)) refuse(at_, fmt::format("{} closes nothing", op));
        open.pop_back();
      }
      add(TokenKind::kOperator, std::string(op), at_);
      at_ += op.size();
      return;
    }
    refuse(at_, fmt::format("got {}, expected a name, a value or an operator",
                            printable(source_.substr(
                                at_, hf::first_character(std::string_view(source_).substr(at_)).size))));
  }

  void read_name() {
    const std::size_t begin = at_;
    while (at_ < source_.size() && (is_letter(source_[at_]) || is_digit(source_[at_]))) ++at_;
    add(TokenKind::kName, source_.substr(begin, at_ - begin), begin);
  }

  void read_digits() {
    while (at_ < source_.size() && is_digit(source_[at_])) ++at_;
  }

  void read_number() {
    const std::size_t begin = at_;
    bool is_float = false;
    read_digits();
    const auto digit_at = [&](std::size_t i) { return i < source_.size() && is_digit(source_[i]); };
    if (sees(".") && digit_at(at_ + 1)) is_float = true, ++at_, read_digits();
    if (sees("e") || sees("E")) {
      const std::size_t sign =
          at_ + 1 < source_.size() && (source_[at_ + 1] == '-' || source_[at_ + 1] == '+') ? 1 : 0;
      if (digit_at(at_ + 1 + sign)) is_float = true, at_ += 1 + sign, read_digits();
    }
    if (at_ < source_.size() && is_letter(source_[at_]))
      refuse(begin, "a number with letters, expected digits");
    add(is_float ? TokenKind::kFloat : TokenKind::kInteger, source_.substr(begin, at_ - begin), begin);
  }

  void read_string() {
    const std::size_t begin = at_;
    const char quote = source_[at_++];
    std::string out;
    while (at_ < source_.size() && source_[at_] != quote) {
      if (source_[at_] == '\\')
        read_escape(out);
      else
        out += source_[at_++];
    }
    if (at_ >= source_.size()) refuse(begin, fmt::format("a string that does not end: expected {}", quote));
    ++at_;
    add(TokenKind::kString, std::move(out), begin);
  }

  i32 hex_digits(std::size_t count) {
    const std::size_t begin = at_;
    i64 code = 0;
    for (; at_ < begin + count; ++at_) {
      if (at_ >= source_.size() || !std::isxdigit(static_cast<unsigned char>(source_[at_])))
        refuse(begin, fmt::format("an escape that is too short, expected {} hexadecimal digits", count));
      const char c = static_cast<char>(std::tolower(static_cast<unsigned char>(source_[at_])));
      code = code * 16 + (is_digit(c) ? c - '0' : c - 'a' + 10);
    }
    if (code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) refuse(begin, "an escape of no character");
    return static_cast<i32>(code);
  }

  void read_escape(std::string& out) {
    if (at_ + 1 >= source_.size()) refuse(at_, "a string that does not end");
    const char c = source_[at_ + 1];
    at_ += 2;
    static constexpr std::string_view kNames = "ntrabfv\\'\"", kStands = "\n\t\r\a\b\f\v\\'\"";
    if (const std::size_t found = kNames.find(c); found != std::string_view::npos) {
      out += kStands[found];
    } else if (c == 'x' || c == 'u' || c == 'U') {
      hf::append_character(hex_digits(c == 'x' ? 2 : c == 'u' ? 4 : 8), out);
    } else if (c >= '0' && c <= '7') {
      i32 code = c - '0';
      for (int i = 0; i < 2 && at_ < source_.size() && source_[at_] >= '0' && source_[at_] <= '7'; ++i)
        code = code * 8 + source_[at_++] - '0';
      hf::append_character(code, out);
    } else if (c != '\n') {
      out += {'\\', c};
    }
  }

  const std::string source_;
  const std::string& where_;
  std::size_t at_ = 0, counted_ = 0;
  Place place_;
  bool line_begins_ = true;
  std::vector<Token> out_;
};

}  // namespace

std::string to_text(const Place& place) {
  return fmt::format("line {}, column {}", place.line, place.column);
}

std::vector<Token> tokens_of(const std::string& source, const std::string& where) {
  return Lexer(source, where).run();
}

}  // namespace hetermoe::jinja
