#include "hetermoe/base/error.h"
#include "hetermoe/data/hf/pattern.h"

// Where Oniguruma and PCRE2 read the same text otherwise.
namespace hetermoe::hf {
namespace {

// Members of classes. PCRE2 counts U+180E as white space, and has fewer characters in \w.
constexpr const char* kSpace =
    R"(\t-\r \x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
constexpr const char* kNoSpace =
    R"(\x{0}-\x{8}\x{E}-\x{1F}!-\x{84}\x{86}-\x{9F}\x{A1}-\x{167F}\x{1681}-\x{1FFF}\x{200B}-\x{2027}\x{202A}-)"
    R"(\x{202E}\x{2030}-\x{205E}\x{2060}-\x{2FFF}\x{3001}-\x{10FFFF})";
constexpr const char* kWord = R"(\p{L}\p{M}\p{N}\p{Pc})";

class Translator {
 public:
  Translator(const std::string& pattern, const std::string& where) : in_(pattern), where_(where) {}

  std::string translate() {
    while (at_ < in_.size()) {
      const char c = in_[at_];
      if (c == '\\')
        escape();
      else if (in_class_)
        class_character(c);
      else if (c == '(')
        group();
      else if (c == '{')
        repeat();
      else
        plain(c);
    }
    return std::move(out_);
  }

 private:
  [[noreturn]] void refuse(const char* what) const {
    fail<ConfigError>(where_, "the pattern {} has {}, which this program does not read", in_, what);
  }
  bool follows(std::string_view text) const { return std::string_view(in_).substr(at_).starts_with(text); }
  void copy(std::size_t count) {
    out_ += in_.substr(at_, count);
    at_ += count;
  }

  void plain(char c) {
    if (c == '[') {
      in_class_ = true;
      copy(follows("[^") ? 2 : 1);
      if (follows("]")) copy(1);  // as the first it is a member
      return;
    }
    copy(1);
  }

  void class_character(char c) {
    if (c == '[') refuse("a class within a class ([ has to be \\[ there)");
    if (follows("&&")) refuse("an intersection of classes (&&)");
    if (c == ']') in_class_ = false;
    copy(1);
  }

  /// Options that are not named i mean something else in PCRE2.
  void group() {
    if (!follows("(?")) return copy(1);
    std::size_t end = at_ + 2;
    while (end < in_.size() && (std::isalpha(static_cast<unsigned char>(in_[end])) != 0 || in_[end] == '-'))
      ++end;
    const bool is_options = end < in_.size() && (in_[end] == ')' || in_[end] == ':');
    if (is_options && in_.find_first_not_of("i-", at_ + 2) < end) refuse("an option other than (?i)");
    copy(end - at_);
  }

  /// {,n} begins at 0, and + after an interval repeats it.
  void repeat() {
    const std::size_t end = in_.find('}', at_);
    if (end == std::string::npos) return copy(1);
    if (end + 1 < in_.size() && in_[end + 1] == '+') refuse("a + after {n,m}");
    if (follows("{,")) {
      out_ += "{0,";
      at_ += 2;
    }
    copy(end + 1 - at_);
  }

  void add_members(const char* members, bool negated) {
    if (in_class_)
      out_ += members;
    else
      out_ += fmt::format("[{}{}]", negated ? "^" : "", members);
    at_ += 2;
  }

  void escape() {
    if (at_ + 1 == in_.size()) refuse("a \\ at its end");
    switch (in_[at_ + 1]) {
      case 's':
        return add_members(kSpace, false);
      case 'S':
        return in_class_ ? add_members(kNoSpace, false) : add_members(kSpace, true);
      case 'w':
        return add_members(kWord, false);
      case 'W':
        if (in_class_) refuse("\\W in a class");
        return add_members(kWord, true);
      case 'd':
        return add_members(R"(\p{Nd})", false);
      case 'D':
        return add_members(R"(\P{Nd})", false);
      case 'h':
        return add_members("0-9A-Fa-f", false);
      case 'p':
      case 'P':
        return property();
      case 'u':
        return code_point();
      default:
        return other_escape();
    }
  }

  void other_escape() {
    constexpr std::string_view kSame = "tnrfvaexAzZGBbk";
    const char c = in_[at_ + 1];
    const bool is_letter = std::isalpha(static_cast<unsigned char>(c)) != 0;
    if (is_letter && kSame.find(c) == std::string_view::npos) refuse("an escape that is not known");
    if (c == 'v') {  // one character there, several in PCRE2
      out_ += R"(\x{B})";
      at_ += 2;
      return;
    }
    copy(2);
  }

  /// \p{Han} is a script there; PCRE2 takes its extensions, too.
  void property() {
    const std::size_t end = in_.find('}', at_);
    if (at_ + 2 >= in_.size() || in_[at_ + 2] != '{' || end == std::string::npos)
      refuse("a property without {}");
    const std::string name = in_.substr(at_ + 3, end - at_ - 3);
    const bool negated = name.starts_with("^");
    const std::string bare = name.substr(negated ? 1 : 0);
    out_ += fmt::format("{}{{{}{}{}}}", in_.substr(at_, 2), negated ? "^" : "", bare.size() > 2 ? "sc:" : "",
                        bare);
    at_ = end + 1;
  }

  void code_point() {
    if (at_ + 6 > in_.size()) refuse("\\u without four digits");
    out_ += fmt::format("\\x{{{}}}", in_.substr(at_ + 2, 4));
    at_ += 6;
  }

  const std::string& in_;
  const std::string& where_;
  std::string out_;
  std::size_t at_ = 0;
  bool in_class_ = false;
};

}  // namespace

std::string pcre2_of_oniguruma(const std::string& pattern, const std::string& where) {
  return Translator(pattern, where).translate();
}

}  // namespace hetermoe::hf
