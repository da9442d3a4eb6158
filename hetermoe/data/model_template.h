#pragma once
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/data/chat_template.h"
#include "hetermoe/data/jinja/template.h"

namespace hetermoe {

/// The chat template in a model's folder, rendered as transformers renders it. Which text an answer is
/// follows from rendering what comes before it, and what comes before and the answer: both begin the whole
/// text. Thread-safe.
class ModelTemplate {
 public:
  /// path: a folder, its tokenizer_config.json or its chat_template.jinja. Throws ConfigError where there is
  /// no template, or one that data/jinja does not read, with line and column.
  explicit ModelTemplate(const std::string& path);

  struct Rendered {
    std::vector<ChatPart> parts;
    /// Answers of the assistant that the whole conversation tells otherwise than the model wrote them, as
    /// Qwen3's without its thoughts. They are not counted.
    i64 told_otherwise = 0;
  };
  /// Throws InputError that begins with `place` for what the template refuses, and where no answer is
  /// counted. With `ask` nothing is counted, and the beginning of an answer follows.
  Rendered render(std::span<const ChatMessage> conversation, const std::string& place,
                  bool ask = false) const;

  /// Name of the special token by which an answer ends; empty = the template writes none.
  const std::string& answer_end() const { return answer_end_; }
  /// Names of the special tokens of the folder's tokenizer.
  const std::vector<std::string>& special() const { return special_; }

 private:
  struct Span {
    std::size_t begin = 0, end = 0;
  };
  std::string text_of(std::span<const ChatMessage> conversation, const std::string& place, bool ask) const;
  bool find_answer(std::span<const ChatMessage> conversation, std::size_t i, const std::string& whole,
                   const std::string& place, Span& out) const;
  std::string special_at(const std::string& text, std::size_t at) const;
  std::string find_answer_end() const;

  std::string path_;
  std::unique_ptr<jinja::Template> template_;
  Json names_;  ///< bos_token, ...
  std::vector<std::string> special_;
  std::string special_begins_;  ///< their first bytes
  std::string answer_end_;
};

/// Whether a path is or has a chat template of a model.
bool has_chat_template(const std::string& path);

}  // namespace hetermoe
