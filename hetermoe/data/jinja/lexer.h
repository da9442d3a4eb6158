#pragma once
#include <string>
#include <vector>

#include "hetermoe/base/types.h"

namespace hetermoe::jinja {

/// Counted from 1, in bytes.
struct Place {
  i64 line = 1, column = 1;
};
std::string to_text(const Place& place);

enum class TokenKind {
  kText,
  kTagBegin,
  kTagEnd,
  kPrintBegin,
  kPrintEnd,
  kName,
  kString,
  kInteger,
  kFloat,
  kOperator,
  kEnd
};
struct Token {
  TokenKind kind = TokenKind::kEnd;
  std::string text;  ///< of strings what they stand for
  Place place;
};

/// Tokens of a template, blanks around tags dropped as trim_blocks and lstrip_blocks say, which chat
/// templates are read with. Throws ConfigError that begins with `where`, line and column.
std::vector<Token> tokens_of(const std::string& source, const std::string& where);

}  // namespace hetermoe::jinja
