#pragma once
#include <array>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "hetermoe/data/hf/normalizer.h"
#include "hetermoe/data/hf/part.h"

// Tokens that are found in the text before anything else, as <|endoftext|>.
namespace hetermoe::hf {

struct AddedToken {
  i64 id = 0;
  std::string content;
  bool special = false;
  bool single_word = false;             ///< only where no word goes on beside it
  bool lstrip = false, rstrip = false;  ///< with the white space beside it
  bool normalized = true;               ///< looked for in the normalised text
};

/// The "added_tokens" of a file, those without content left out.
std::vector<AddedToken> read_added_tokens(const Part& file);

/// Cuts texts where tokens stand. Thread-safe.
class TokenFinder {
 public:
  TokenFinder() = default;
  /// tokens: as they are written in the texts, if need be normalised.
  explicit TokenFinder(std::vector<AddedToken> tokens);

  /// Hands on texts between tokens, with the place where each begins, and ids, in their order.
  void split(std::string_view text, const std::function<void(std::string_view, std::size_t)>& take_text,
             const std::function<void(i64)>& take_token) const;

 private:
  const AddedToken* longest_at(std::string_view rest) const;
  std::vector<AddedToken> tokens_;                           // longest first
  std::array<std::vector<std::size_t>, 256> by_first_byte_;  // in tokens_
};

}  // namespace hetermoe::hf
