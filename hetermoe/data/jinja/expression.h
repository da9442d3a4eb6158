#pragma once
#include "hetermoe/data/jinja/scope.h"

namespace hetermoe::jinja {

/// Tokens that are read one after another. Errors are ConfigError with `where`, line and column.
class Cursor {
 public:
  Cursor(std::vector<Token> tokens, const std::string& where) : tokens_(std::move(tokens)), where_(where) {}
  const Token& peek(std::size_t ahead = 0) const {
    return tokens_[std::min(at_ + ahead, tokens_.size() - 1)];
  }
  const Token& next();
  bool sees(TokenKind kind, const char* text = nullptr) const;
  bool sees_operator(const char* text) const { return sees(TokenKind::kOperator, text); }
  bool sees_word(const char* text) const { return sees(TokenKind::kName, text); }
  /// Takes the token if it is that.
  bool takes_operator(const char* text);
  bool takes_word(const char* text);
  const Token& expect(TokenKind kind, const char* text = nullptr);
  [[noreturn]] void refuse(const Place& place, const std::string& text) const;
  /// Kept while an expression or a tag is read: deeper() throws where too many lie in each other.
  class Depth {
   public:
    explicit Depth(Cursor& cursor) : cursor_(cursor) { deeper(); }
    ~Depth() { cursor_.depth_ -= taken_; }
    Depth(const Depth&) = delete;
    void deeper();

   private:
    Cursor& cursor_;
    int taken_ = 0;
  };

 private:
  std::vector<Token> tokens_;
  const std::string& where_;
  std::size_t at_ = 0;
  int depth_ = 0;
};

/// `a if b else c` and what binds more tightly. with_condition: without "if" where a loop's own may follow.
Expression parse_expression(Cursor& cursor, bool with_condition = true);
/// The same; with a comma after it a tuple.
Expression parse_tuple(Cursor& cursor, bool with_condition = true);
/// Filters after a value: `| trim | lower`.
Expression parse_filters(Cursor& cursor, Expression of);

}  // namespace hetermoe::jinja
