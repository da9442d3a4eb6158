#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "hetermoe/data/chat_lines.h"
#include "hetermoe/data/token_stream.h"
#include "hetermoe/data/tokenizer.h"

// How a model is used to see conversations.
namespace hetermoe {

/// Texts around a message. Special tokens stand in them by their names.
struct ChatTurn {
  const char *before = "", *after = "";
};

/// How calls of tools and what these say are written: not at all, as Qwen3, as Llama 3.1.
enum class ChatTools { kNone, kQwen, kLlama };

/// A row of the table of templates.
struct ChatTemplate {
  const char* name;
  const char* begin;                 ///< of a conversation
  ChatTurn system, user, assistant;  ///< after the assistant's: what is not counted
  const char* answer_begin;          ///< before an answer, counted with it: the model writes it
  const char* answer_end;            ///< after an answer, counted with it: the model stops by it
  std::vector<const char*> special;  ///< tokens of its own
  bool end_token = false;            ///< the tokenizer's end token, if it has one, comes after an answer
  bool joins_system = false;         ///< the system's text is a part of the first message of the user
  bool trims = false;                ///< blanks around messages are dropped
  const char* system_end = "";       ///< after the system's message, or in its place
  ChatTools tools = ChatTools::kNone;
  /// Answers after the last question begin with what the model thought; those before it are told without, as
  /// the model does not write them, and are not counted.
  bool thinks = false;
};

/// The row `name`. Throws ConfigError with all names for what it does not know; null in its place.
const ChatTemplate& find_chat_template(const std::string& name);
const ChatTemplate* try_chat_template(const std::string& name);
std::vector<std::string> chat_template_names();
/// The same in one text.
std::string chat_template_list();

/// A part of a rendered conversation.
struct ChatPart {
  std::string text;
  bool special = false;  ///< the name of one token, empty = the end token of the tokenizer, if it has one
  bool counted = false;  ///< in the loss: of an answer
  bool operator==(const ChatPart&) const = default;
};
/// Throws InputError that begins with `place` where the template has no form for a message.
void check_renders(const ChatTemplate& how, std::span<const ChatMessage> conversation,
                   const std::string& place);
/// Renders a conversation that check_renders() accepts. Neighbouring parts differ. With `ask` the beginning
/// of an answer follows the messages.
std::vector<ChatPart> render(const ChatTemplate& how, std::span<const ChatMessage> conversation,
                             bool ask = false);

/// Whether the template counts an answer of it: one after the last question, where it thinks.
bool counts_answer(const ChatTemplate& how, std::span<const ChatMessage> conversation);
/// By which an answer ends.
std::vector<ChatPart> answer_end_of(const ChatTemplate& how);

/// A conversation as tokens; those of each part are made apart, so that none is half counted.
struct ChatTokens {
  std::vector<i64> tokens;
  std::vector<TokenSpan> counted;
  i64 told_otherwise = 0;  ///< answers that are not counted, see ModelTemplate
};
class ModelTemplate;
class ChatEncoder {
 public:
  /// how: a name, or the path of a model's template. Throws ConfigError for a template that is not known, and
  /// for a special token that the tokenizer lacks. With bytes they are spelled.
  ChatEncoder(const std::string& how, const Tokenizer& tokenizer, const std::string& tokenizer_name,
              std::optional<i64> end_token);
  /// Throws InputError by check_renders() and ModelTemplate::render().
  ChatTokens encode(std::span<const ChatMessage> conversation, const std::string& place,
                    bool ask = false) const;
  /// By which an answer ends.
  std::vector<i64> answer_end() const;

 private:
  void check_special(const std::string& token, const std::string& how, const std::string& tokenizer) const;
  void add(const ChatPart& part, ChatTokens& out) const;
  std::vector<i64> tokens_of(const std::string& text, bool begins) const;
  const ChatTemplate* row_;  ///< null = model_
  std::shared_ptr<const ModelTemplate> model_;
  std::vector<std::string> special_;  ///< names that the tokenizer does not find in a text by itself
  const Tokenizer& tokenizer_;
  std::optional<i64> end_token_;
};

}  // namespace hetermoe
