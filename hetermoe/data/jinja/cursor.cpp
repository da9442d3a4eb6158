#include "hetermoe/base/error.h"
#include "hetermoe/data/jinja/expression.h"

namespace hetermoe::jinja {
namespace {

std::string shown(const Token& token) {
  return token.kind == TokenKind::kText ? "text" : token.kind == TokenKind::kString ? "a string" : token.text;
}

}  // namespace

const Token& Cursor::next() {
  const Token& token = peek();
  if (at_ + 1 < tokens_.size()) ++at_;
  return token;
}

bool Cursor::sees(TokenKind kind, const char* text) const {
  return peek().kind == kind && (text == nullptr || peek().text == text);
}

bool Cursor::takes_operator(const char* text) {
  if (!sees_operator(text)) return false;
  next();
  return true;
}

bool Cursor::takes_word(const char* text) {
  if (!sees_word(text)) return false;
  next();
  return true;
}

const Token& Cursor::expect(TokenKind kind, const char* text) {
  if (sees(kind, text)) return next();
  const char* what = text != nullptr ? text : kind == TokenKind::kName ? "a name" : "the end of the tag";
  refuse(peek().place, fmt::format("got {}, expected {}", printable(shown(peek())), what));
}

void Cursor::refuse(const Place& place, const std::string& text) const {
  fail<ConfigError>(where_, "{}: {}", to_text(place), text);
}

void Cursor::Depth::deeper() {
  constexpr int kMostDeep = 400;
  if (cursor_.depth_ >= kMostDeep)
    cursor_.refuse(cursor_.peek().place, "too many values lie in each other here");
  ++cursor_.depth_, ++taken_;
}

}  // namespace hetermoe::jinja
