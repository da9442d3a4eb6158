#include "hetermoe/data/chat_template.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "hetermoe/base/error.h"
#include "hetermoe/base/json.h"

namespace hetermoe {
namespace fs = std::filesystem;
namespace {

constexpr const char* kKey = "data.template";

const std::vector<ChatTemplate> kTable = {
    {.name = "chatml",
     .begin = "",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "\n"},
     .answer_begin = "",
     .answer_end = "<|im_end|>",
     .special = {"<|im_start|>", "<|im_end|>"},
     .marks = {"<|im_start|>", "<|im_end|>"}},
    {.name = "llama3",
     .begin = "<|begin_of_text|>",
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", ""},
     .answer_begin = "",
     .answer_end = "<|eot_id|>",
     .special = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .trims = true,
     .marks = {"<|start_header_id|>", "<|eot_id|>"}},
    {.name = "mistral",  // of Mixtral 8x7B and Mistral 7B v0.1; later ones have tokens for [INST]
     .begin = "<s>",
     .system = {"", "\n\n"},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {"", ""},
     .answer_begin = "",
     .answer_end = "</s>",
     .special = {"<s>", "</s>"},
     .joins_system = true,
     .marks = {"[INST]", "[/INST]"},
     .no_marks = {"[AVAILABLE_TOOLS]", "[SYSTEM_PROMPT]", "<<SYS>>"}},
    {.name = "deepseek-v2",
     .begin = "<｜begin▁of▁sentence｜>",
     .system = {"", "\n\n"},
     .user = {"User: ", "\n\n"},
     .assistant = {"Assistant:", ""},
     .answer_begin = " ",
     .answer_end = "<｜end▁of▁sentence｜>",
     .special = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"},
     .marks = {"User: ", "Assistant: "},
     .no_marks = {"<|", "[INST]", "<｜User｜>"}},
    {.name = "deepseek-v3",
     .begin = "<｜begin▁of▁sentence｜>",
     .system = {"", ""},
     .user = {"<｜User｜>", ""},
     .assistant = {"<｜Assistant｜>", ""},
     .answer_begin = "",
     .answer_end = "<｜end▁of▁sentence｜>",
     .special = {"<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"},
     .marks = {"<｜User｜>", "<｜Assistant｜>"}},
    {.name = "plain",  // for models that have none
     .begin = "",
     .system = {"System:\n", "\n\n"},
     .user = {"User:\n", "\n\n"},
     .assistant = {"Assistant:\n", ""},
     .answer_begin = "",
     .answer_end = "\n\n",
     .special = {},
     .end_token = true}};

std::string trimmed(const std::string& text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first == std::string::npos) return "";
  return text.substr(first, text.find_last_not_of(" \t\r\n") - first + 1);
}

void add_text(std::vector<ChatPart>& out, const std::string& text, bool counted) {
  if (text.empty()) return;
  if (!out.empty() && !out.back().special && out.back().counted == counted)
    out.back().text += text;
  else
    out.push_back({text, false, counted});
}

/// A text of the template, in which special tokens are told from other words.
void add_literal(const ChatTemplate& how, const std::string& text, bool counted, std::vector<ChatPart>& out) {
  std::size_t at = 0;
  while (at < text.size()) {
    std::size_t next = text.size();
    std::string token;
    for (const char* special : how.special) {
      const std::size_t found = text.find(special, at);
      if (found < next) next = found, token = special;
    }
    add_text(out, text.substr(at, next - at), counted);
    if (!token.empty()) out.push_back({token, true, counted});
    at = next + token.size();
  }
}

/// The chat_template of a tokenizer_config.json: a text, or texts by name of which "default" counts.
std::string template_of_config(const fs::path& path) {
  const Json json = read_json(path);
  if (!json.is_object() || !json.contains("chat_template")) return "";
  const Json& found = json["chat_template"];
  if (found.is_string()) return found.get<std::string>();
  if (!found.is_array()) return "";
  for (const Json& named : found) {
    if (named.is_object() && named.value("name", Json()) == "default" && named.contains("template") &&
        named["template"].is_string())
      return named["template"].get<std::string>();
  }
  return "";
}

/// The Jinja text behind a path; empty = there is none.
std::string jinja_of(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const char* name : {"chat_template.jinja", "tokenizer_config.json"}) {
      if (!fs::is_regular_file(path / name, ignored)) continue;
      const std::string found = jinja_of(path / name);
      if (!found.empty()) return found;
    }
    return "";
  }
  if (!fs::is_regular_file(path, ignored)) return "";
  return path.extension() == ".json" ? template_of_config(path) : read_text(path, 1 << 22);
}

bool has_all(const std::string& text, const std::vector<const char*>& marks) {
  return std::all_of(marks.begin(), marks.end(),
                     [&](const char* mark) { return text.find(mark) != std::string::npos; });
}

bool has_any(const std::string& text, const std::vector<const char*>& marks) {
  return std::any_of(marks.begin(), marks.end(),
                     [&](const char* mark) { return text.find(mark) != std::string::npos; });
}

}  // namespace

std::vector<std::string> chat_template_names() {
  std::vector<std::string> out;
  for (const ChatTemplate& row : kTable) out.emplace_back(row.name);
  return out;
}

bool has_chat_template(const std::string& folder) { return !jinja_of(folder).empty(); }

const ChatTemplate& find_chat_template(const std::string& name) {
  for (const ChatTemplate& row : kTable) {
    if (name == row.name) return row;
  }
  const std::string names = fmt::format("{}", fmt::join(chat_template_names(), ", "));
  std::error_code ignored;
  if (!fs::exists(name, ignored)) {
    fail<ConfigError>(kKey,
                      "got {}, expected {}, or a folder whose tokenizer_config.json or chat_template.jinja "
                      "has the model's template",
                      name, names);
  }
  const std::string jinja = jinja_of(name);
  if (jinja.empty())
    fail<ConfigError>(kKey, "{} has no chat_template, expected one there, or by name: {}", name, names);
  for (const ChatTemplate& row : kTable) {
    if (!row.marks.empty() && has_all(jinja, row.marks) && !has_any(jinja, row.no_marks)) return row;
  }
  fail<ConfigError>(kKey,
                    "the chat_template of {} is none of those that this program has: name the nearest of "
                    "{}, or make tokens with tools/tokenize_text.py --chat",
                    name, names);
}

std::vector<ChatPart> render(const ChatTemplate& how, std::span<const ChatMessage> conversation, bool ask) {
  std::vector<ChatPart> out;
  add_literal(how, how.begin, false, out);
  std::string joined;  // of the system, before the first message of the user
  for (const ChatMessage& message : conversation) {
    const std::string text = how.trims ? trimmed(message.text) : message.text;
    if (message.role == ChatRole::kSystem && how.joins_system) {
      joined = how.system.before + text + how.system.after;
      continue;
    }
    const bool answer = message.role == ChatRole::kAssistant;
    const ChatTurn& turn = answer ? how.assistant : message.role == ChatRole::kUser ? how.user : how.system;
    add_literal(how, turn.before, false, out);
    if (answer) add_literal(how, how.answer_begin, true, out);
    add_text(out, std::exchange(joined, "") + text, answer);
    if (answer) {
      if (how.end_token) out.push_back({"", true, true});
      add_literal(how, how.answer_end, true, out);
    }
    add_literal(how, turn.after, false, out);
  }
  if (ask) add_literal(how, how.assistant.before, false, out);
  return out;
}

ChatEncoder::ChatEncoder(const ChatTemplate& how, const Tokenizer& tokenizer,
                         const std::string& tokenizer_name, std::optional<i64> end_token)
    : how_(how), tokenizer_(tokenizer), end_token_(end_token) {
  for (const char* token : how.special) {
    if (!tokenizer.encode_special(token).empty()) continue;
    fail<ConfigError>(
        kKey,
        "{} needs the token {}, which the tokenizer {} lacks: expected the tokenizer of a model "
        "with this template, or data.template plain",
        how.name, token, tokenizer_name);
  }
}

void ChatEncoder::add(const ChatPart& part, ChatTokens& out) const {
  const i64 begin = static_cast<i64>(out.tokens.size());
  if (part.special && part.text.empty()) {  // the tokenizer's own end token
    if (end_token_) out.tokens.push_back(*end_token_);
  } else {
    const std::vector<i64> tokens =
        part.special ? tokenizer_.encode_special(part.text) : tokenizer_.encode(part.text);
    out.tokens.insert(out.tokens.end(), tokens.begin(), tokens.end());
  }
  const i64 end = static_cast<i64>(out.tokens.size());
  if (!part.counted || begin == end) return;
  if (!out.counted.empty() && out.counted.back().end == begin)
    out.counted.back().end = end;
  else
    out.counted.push_back({begin, end});
}

ChatTokens ChatEncoder::encode(std::span<const ChatMessage> conversation, bool ask) const {
  ChatTokens out;
  for (const ChatPart& part : render(how_, conversation, ask)) add(part, out);
  return out;
}

std::vector<i64> ChatEncoder::answer_end() const {
  if (how_.end_token && end_token_) return {*end_token_};
  std::vector<ChatPart> parts;
  add_literal(how_, how_.answer_end, true, parts);
  ChatTokens out;
  for (const ChatPart& part : parts) add(part, out);
  return out.tokens;
}

}  // namespace hetermoe
