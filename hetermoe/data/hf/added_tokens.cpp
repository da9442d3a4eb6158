#include "hetermoe/data/hf/added_tokens.h"

#include "hetermoe/base/index.h"
#include "hetermoe/data/hf/pattern.h"
#include "hetermoe/data/hf/utf8.h"

namespace hetermoe::hf {
namespace {

/// Whether a character is of a word, as Rust's regex has it.
bool is_of_word(std::string_view character) {
  static const Pattern kWord = Pattern::of_pcre2(R"(\A[\p{Alphabetic}\p{M}\p{Nd}\p{Pc}\x{200C}\x{200D}])");
  Pattern::Match match;
  return kWord.find(character, 0, match);
}

bool ends_with_word(std::string_view text) {
  return !text.empty() && is_of_word(text.substr(text.size() - last_character_size(text)));
}
bool begins_with_word(std::string_view text) {
  return !text.empty() && is_of_word(text.substr(0, first_character(text).size));
}

std::size_t without_blanks_at_end(std::string_view text) {
  while (!text.empty()) {
    const std::size_t size = last_character_size(text);
    if (!is_white_space(first_character(text.substr(text.size() - size)).code)) break;
    text.remove_suffix(size);
  }
  return text.size();
}

std::size_t blanks_at_begin(std::string_view text) {
  std::size_t at = 0;
  while (at < text.size()) {
    const Character next = first_character(text.substr(at));
    if (!is_white_space(next.code)) break;
    at += next.size;
  }
  return at;
}

}  // namespace

std::vector<AddedToken> read_added_tokens(const Part& file) {
  std::vector<AddedToken> out;
  if (!file.has("added_tokens")) return out;
  for (const Part& part : file.objects("added_tokens")) {
    part.only({"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"});
    AddedToken token;
    token.id = part.number("id");
    token.content = part.text("content");
    token.special = part.flag("special", false);
    token.single_word = part.flag("single_word", false);
    token.lstrip = part.flag("lstrip", false);
    token.rstrip = part.flag("rstrip", false);
    token.normalized = part.flag("normalized", !token.special);
    if (!token.content.empty()) out.push_back(std::move(token));
  }
  return out;
}

TokenFinder::TokenFinder(std::vector<AddedToken> tokens) : tokens_(std::move(tokens)) {
  std::erase_if(tokens_, [](const AddedToken& token) { return token.content.empty(); });
  std::stable_sort(tokens_.begin(), tokens_.end(), [](const AddedToken& a, const AddedToken& b) {
    return a.content.size() > b.content.size();
  });
  for (std::size_t i = 0; i < tokens_.size(); ++i)
    by_first_byte_[static_cast<unsigned char>(tokens_[i].content[0])].push_back(i);
}

const AddedToken* TokenFinder::longest_at(std::string_view rest) const {
  for (const std::size_t i : by_first_byte_[static_cast<unsigned char>(rest[0])]) {
    if (rest.starts_with(tokens_[i].content)) return &tokens_[i];
  }
  return nullptr;
}

void TokenFinder::split(std::string_view text,
                        const std::function<void(std::string_view, std::size_t)>& take_text,
                        const std::function<void(i64)>& take_token) const {
  const std::size_t size = tokens_.empty() ? 0 : text.size();
  std::size_t done = 0;
  for (std::size_t at = 0; at < size;) {
    const AddedToken* token = longest_at(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }
    std::size_t begin = at, end = at + token->content.size();
    at = end;  // also where the token is none: its text is not searched again
    if (token->single_word && (ends_with_word(text.substr(0, begin)) || begins_with_word(text.substr(end))))
      continue;
    if (token->lstrip) begin = std::max(done, without_blanks_at_end(text.substr(0, begin)));
    if (token->rstrip) end += blanks_at_begin(text.substr(end));
    if (done < begin) take_text(text.substr(done, begin - done), done);
    take_token(token->id);
    done = end;
  }
  if (done < text.size()) take_text(text.substr(done), done);
}

}  // namespace hetermoe::hf
