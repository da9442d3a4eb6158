#include "hetermoe/data/chat_template.h"

#include <filesystem>

#include "hetermoe/base/error.h"
#include "hetermoe/data/model_template.h"

// From a conversation to tokens.
namespace hetermoe {

ChatEncoder::ChatEncoder(const std::string& how, const Tokenizer& tokenizer,
                         const std::string& tokenizer_name, std::optional<i64> end_token)
    : row_(try_chat_template(how)), tokenizer_(tokenizer), end_token_(end_token) {
  if (row_ == nullptr && !std::filesystem::exists(how)) find_chat_template(how);  // refuses it
  if (row_ != nullptr) {
    for (const char* token : row_->special) check_special(token, how, tokenizer_name);
    return;
  }
  model_ = std::make_shared<const ModelTemplate>(how);
  if (!model_->answer_end().empty()) check_special(model_->answer_end(), how, tokenizer_name);
  for (const std::string& name : model_->special()) {
    const std::vector<i64> token = tokenizer.encode_special(name);
    if (!token.empty() && token != tokenizer.encode(name)) special_.push_back(name);
  }
}

void ChatEncoder::check_special(const std::string& token, const std::string& how,
                                const std::string& tokenizer) const {
  if (!tokenizer_.encode_special(token).empty()) return;
  fail<ConfigError>("data.template",
                    "{} needs the token {}, which the tokenizer {} lacks: expected the tokenizer of a model "
                    "with this template, or data.template plain",
                    how, token, tokenizer);
}

/// Of a text in which names of special tokens stand.
std::vector<i64> ChatEncoder::tokens_of(const std::string& text, bool begins) const {
  std::vector<i64> out;
  const auto append = [&](const std::vector<i64>& tokens) {
    out.insert(out.end(), tokens.begin(), tokens.end());
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t next = text.size();
    const std::string* token = nullptr;
    for (const std::string& name : special_) {  // longer ones first
      const std::size_t found = text.find(name, at);
      if (found < next) next = found, token = &name;
    }
    const std::string between = text.substr(at, next - at);
    if (!between.empty())
      append(begins && at == 0 ? tokenizer_.encode(between) : tokenizer_.encode_inside(between));
    if (token != nullptr) append(tokenizer_.encode_special(*token));
    at = next + (token == nullptr ? 0 : token->size());
  }
  return out;
}

void ChatEncoder::add(const ChatPart& part, ChatTokens& out) const {
  const i64 begin = static_cast<i64>(out.tokens.size());
  if (part.special && part.text.empty()) {  // the tokenizer's own end token
    if (end_token_) out.tokens.push_back(*end_token_);
  } else {
    const std::vector<i64> tokens =
        part.special ? tokenizer_.encode_special(part.text) : tokens_of(part.text, out.tokens.empty());
    out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
  }
  const i64 end = static_cast<i64>(out.tokens.size());
  if (!part.counted || begin == end) return;
  if (!out.counted.empty() && out.counted.back().end == begin)
    out.counted.back().end = end;
  else
    out.counted.push_back({begin, end});
}

ChatTokens ChatEncoder::encode(std::span<const ChatMessage> conversation, const std::string& place,
                               bool ask) const {
  ChatTokens out;
  if (model_) {
    const ModelTemplate::Rendered rendered = model_->render(conversation, place, ask);
    for (const ChatPart& part : rendered.parts) add(part, out);
    out.told_otherwise = rendered.told_otherwise;
    return out;
  }
  check_renders(*row_, conversation, place);
  if (!ask && !counts_answer(*row_, conversation))
    fail<InputError>(place, "has no answer after its last question, expected one: {} counts no other",
                     row_->name);
  for (const ChatPart& part : hetermoe::render(*row_, conversation, ask)) add(part, out);
  return out;
}

std::vector<i64> ChatEncoder::answer_end() const {
  const bool is_end_token = model_ ? model_->answer_end().empty() : row_->end_token;
  if (is_end_token && end_token_) return {*end_token_};
  if (model_) return is_end_token ? std::vector<i64>{} : tokenizer_.encode_special(model_->answer_end());
  ChatTokens out;
  for (const ChatPart& part : answer_end_of(*row_)) add(part, out);
  return out.tokens;
}

}  // namespace hetermoe
