#define PCRE2_CODE_UNIT_WIDTH 8
#include "hetermoe/data/hf/pattern.h"

#include <pcre2.h>

#include "hetermoe/base/error.h"
#include "hetermoe/data/hf/utf8.h"

namespace hetermoe::hf {
namespace {

constexpr std::size_t kFirstStack = 32 << 10, kLargestStack = 64 << 20;  // bytes for the compiled pattern

/// What a thread needs for its searches, whatever the pattern.
struct SearchMemory {
  pcre2_match_data* match = pcre2_match_data_create(1, nullptr);
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  pcre2_jit_stack* stack = pcre2_jit_stack_create(kFirstStack, kLargestStack, nullptr);
  SearchMemory() { pcre2_jit_stack_assign(context, nullptr, stack); }
  ~SearchMemory() {
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_match_data_free(match);
  }
  SearchMemory(const SearchMemory&) = delete;
  SearchMemory& operator=(const SearchMemory&) = delete;
};

std::string message_of(int code) {
  PCRE2_UCHAR text[256];
  pcre2_get_error_message(code, text, sizeof(text));
  return reinterpret_cast<const char*>(text);
}

}  // namespace

std::shared_ptr<const void> Pattern::compile(const std::string& pattern, unsigned options,
                                             const std::string& where) {
  int code = 0;
  PCRE2_SIZE at = 0;
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  pcre2_code* compiled = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(),
                                       options | PCRE2_UTF, &code, &at, context.get());
  if (compiled == nullptr)
    fail<ConfigError>(where, "cannot read the pattern {} at byte {}: {}", pattern, at, message_of(code));
  pcre2_jit_compile(compiled, PCRE2_JIT_COMPLETE);  // without it pcre2_match() interprets
  return {compiled,
          [](const void* held) { pcre2_code_free(static_cast<pcre2_code*>(const_cast<void*>(held))); }};
}

Pattern Pattern::of_file(const std::string& oniguruma, const std::string& where) {
  // There ^ and $ are those of lines.
  return Pattern(compile(pcre2_of_oniguruma(oniguruma, where), PCRE2_UCP | PCRE2_MULTILINE, where));
}

Pattern Pattern::of_literal(const std::string& text, const std::string& where) {
  return Pattern(compile(text, PCRE2_LITERAL, where));
}

Pattern Pattern::of_pcre2(const std::string& pattern) {
  return Pattern(compile(pattern, PCRE2_UCP, pattern));
}

bool Pattern::find(std::string_view text, std::size_t from, Match& match) const {
  thread_local const SearchMemory memory;
  const int found =
      pcre2_match(static_cast<const pcre2_code*>(code_.get()), reinterpret_cast<PCRE2_SPTR>(text.data()),
                  text.size(), from, PCRE2_NO_UTF_CHECK, memory.match, memory.context);
  if (found == PCRE2_ERROR_NOMATCH) return false;
  if (found < 0)
    fail<InputError>("data.tokenizer", "a pattern of the tokenizer stops in a text: {}", message_of(found));
  const PCRE2_SIZE* at = pcre2_get_ovector_pointer(memory.match);
  match = {at[0], at[1]};
  return true;
}

bool Matches::next(Pattern::Match& match) {
  while (at_ <= text_.size() && pattern_.find(text_, at_, match)) {
    if (match.begin == match.end && match.end == before_) {
      at_ += at_ < text_.size() ? first_character(text_.substr(at_)).size : 1;
      continue;
    }
    at_ = before_ = match.end;
    return true;
  }
  at_ = text_.size() + 1;
  return false;
}

}  // namespace hetermoe::hf
