#pragma once
#include <memory>
#include <string>
#include <string_view>

// Regular expressions of tokenizer.json files.
namespace hetermoe::hf {

/// A regular expression over valid UTF-8. Thread-safe.
class Pattern {
 public:
  /// In the syntax and with the classes of Oniguruma, by which the package `tokenizers` runs patterns of
  /// files. Throws ConfigError that begins with `where` for what PCRE2 reads otherwise or not at all.
  static Pattern of_file(const std::string& oniguruma, const std::string& where);
  /// The text itself.
  static Pattern of_literal(const std::string& text, const std::string& where);
  /// In the syntax of PCRE2.
  static Pattern of_pcre2(const std::string& pattern);

  struct Match {
    std::size_t begin = 0, end = 0;
  };
  /// The first match that begins at `from` or later; characters before `from` are seen by assertions. Returns
  /// false where there is none. Throws InputError when the search takes more than PCRE2 allows.
  bool find(std::string_view text, std::size_t from, Match& match) const;

 private:
  explicit Pattern(std::shared_ptr<const void> code) : code_(std::move(code)) {}
  static std::shared_ptr<const void> compile(const std::string& pattern, unsigned options,
                                             const std::string& where);
  std::shared_ptr<const void> code_;
};

/// All matches of a pattern in a text, from left to right. An empty match right after another is passed over.
class Matches {
 public:
  /// from: a character at which a search begins, as if a match had ended there.
  Matches(const Pattern& pattern, std::string_view text, std::size_t from = 0)
      : pattern_(pattern), text_(text), at_(from), before_(from > 0 ? from : std::string_view::npos) {}
  bool next(Pattern::Match& match);

 private:
  const Pattern& pattern_;
  std::string_view text_;
  std::size_t at_, before_;  // before_: where the match before ended; npos = there was none
};

/// A pattern of Oniguruma as one of PCRE2 with the same matches. Throws ConfigError that begins with `where`.
std::string pcre2_of_oniguruma(const std::string& pattern, const std::string& where);

}  // namespace hetermoe::hf
