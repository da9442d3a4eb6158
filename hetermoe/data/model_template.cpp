#include "hetermoe/data/model_template.h"

#include <algorithm>
#include <filesystem>

#include "hetermoe/base/error.h"
#include "hetermoe/data/hf/token_files.h"

namespace hetermoe {
namespace fs = std::filesystem;
namespace {

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

struct Found {
  std::string text;
  fs::path file;
};

/// The Jinja text behind a path; empty = there is none.
Found jinja_of(const fs::path& path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored)) {
    for (const char* name : {"chat_template.jinja", "tokenizer_config.json"}) {
      if (!fs::is_regular_file(path / name, ignored)) continue;
      Found found = jinja_of(path / name);
      if (!found.text.empty()) return found;
    }
    return {};
  }
  if (!fs::is_regular_file(path, ignored)) return {};
  return {path.extension() == ".json" ? template_of_config(path) : read_text(path, 1 << 22), path};
}

/// bos_token, eos_token, ... by name, as transformers gives them to a template.
Json named_tokens(const fs::path& folder) {
  Json out = Json::object();
  for (const char* file : {"special_tokens_map.json", "tokenizer_config.json"}) {
    const Json json = hf::object_in(folder / file);
    for (const char* key :
         {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}) {
      const std::string token = json.contains(key) ? hf::token_text(json[key]).value_or("") : "";
      if (!token.empty()) out[key] = token;
    }
  }
  return out;
}

/// Longer names first, so that none is taken for the beginning of another.
std::vector<std::string> special_tokens(const fs::path& folder, const Json& named) {
  std::vector<std::string> out;
  for (const auto& [key, token] : named.items()) out.push_back(token.get<std::string>());
  const Json config = hf::object_in(folder / "tokenizer_config.json");
  if (config.contains("added_tokens_decoder") && config["added_tokens_decoder"].is_object()) {
    for (const auto& [id, token] : config["added_tokens_decoder"].items())
      out.push_back(hf::token_text(token).value_or(""));
  }
  const Json tokenizer = hf::object_in(folder / "tokenizer.json");
  if (tokenizer.contains("added_tokens") && tokenizer["added_tokens"].is_array()) {
    for (const Json& token : tokenizer["added_tokens"]) out.push_back(hf::token_text(token).value_or(""));
  }
  std::erase(out, "");
  std::sort(out.begin(), out.end(), [](const std::string& a, const std::string& b) {
    return a.size() != b.size() ? a.size() > b.size() : a < b;
  });
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

const char* name_of(ChatRole role) {
  return role == ChatRole::kSystem      ? "system"
         : role == ChatRole::kUser      ? "user"
         : role == ChatRole::kAssistant ? "assistant"
                                        : "tool";
}

Json json_of(const ToolCall& call) {
  Json out = {{"type", "function"}, {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
  if (!call.id.empty()) out["id"] = call.id;
  return out;
}

/// A message as templates expect it.
Json json_of(const ChatMessage& message) {
  const bool is_silent = message.text.empty() && !message.calls.empty();
  Json out = {{"role", name_of(message.role)}, {"content", is_silent ? Json(nullptr) : Json(message.text)}};
  if (message.reasoning) out["reasoning_content"] = *message.reasoning;
  for (const ToolCall& call : message.calls) out["tool_calls"].push_back(json_of(call));
  if (!message.name.empty()) out["name"] = message.name;
  if (!message.call_id.empty()) out["tool_call_id"] = message.call_id;
  return out;
}

bool is_blank(const std::string& text, std::size_t begin, std::size_t end) {
  const std::size_t found = text.find_first_not_of(" \t\r\n", begin);
  return found == std::string::npos || found >= end;
}

}  // namespace

bool has_chat_template(const std::string& path) { return !jinja_of(path).text.empty(); }

ModelTemplate::ModelTemplate(const std::string& path) : path_(path) {
  const Found found = jinja_of(path);
  if (found.text.empty())
    fail<ConfigError>("data.template", "{} has no chat_template, expected one there, or by name: {}", path,
                      chat_template_list());
  template_ = std::make_unique<jinja::Template>(found.text, found.file.string());
  const fs::path folder = found.file.parent_path();
  names_ = named_tokens(folder);
  special_ = special_tokens(folder, names_);
  for (const std::string& name : special_) special_begins_ += name.front();
  answer_end_ = find_answer_end();
}

std::string ModelTemplate::text_of(std::span<const ChatMessage> conversation, const std::string& place,
                                   bool ask) const {
  Json names = names_;
  names["messages"] = Json::array();
  for (const ChatMessage& message : conversation) names["messages"].push_back(json_of(message));
  names["tools"] = names["documents"] = nullptr;
  names["add_generation_prompt"] = ask;
  try {
    return template_->render(names);
  } catch (const jinja::RenderError& error) {
    fail<InputError>(place, "by the chat template of {}, {}", path_, std::string(error.what()));
  }
}

/// The special token that begins there; empty = none does.
std::string ModelTemplate::special_at(const std::string& text, std::size_t at) const {
  if (at >= text.size() || special_begins_.find(text[at]) == std::string::npos) return "";
  for (const std::string& name : special_) {
    if (text.compare(at, name.size(), name) == 0) return name;
  }
  return "";
}

/// Where message i, an answer, is in the whole text; false = it is told otherwise there. Blanks after the
/// token that ends it are no part of it. Where no token ends it, the one that begins the next message does.
bool ModelTemplate::find_answer(std::span<const ChatMessage> conversation, std::size_t i,
                                const std::string& whole, const std::string& place, Span& out) const {
  const std::string before = text_of(conversation.first(i), place, true);
  const bool is_last = i + 1 == conversation.size();
  const std::string with = is_last ? whole : text_of(conversation.first(i + 1), place, false);
  const bool begins = whole.starts_with(before);
  if (is_last && !begins) {
    fail<InputError>(
        place,
        "the chat template of {} tells what comes before the answer in message {} otherwise when "
        "the answer is there, so which tokens the model writes is not known: expected a template "
        "of which the beginning stays. Name one by data.template: {}",
        path_, i + 1, chat_template_list());
  }
  if (!begins || !whole.starts_with(with) || with.size() <= before.size()) return false;
  out = {before.size(), with.size()};
  std::size_t last = 0;
  for (std::size_t at = out.begin; at < out.end;) {
    const std::string name = special_at(whole, at);
    at += name.empty() ? 1 : name.size();
    if (!name.empty()) last = at;
  }
  if (last > 0 && last <= out.end && is_blank(whole, last, out.end))
    out.end = last;
  else if (const std::string next = special_at(whole, out.end); !next.empty())
    out.end += next.size();
  return true;
}

ModelTemplate::Rendered ModelTemplate::render(std::span<const ChatMessage> conversation,
                                              const std::string& place, bool ask) const {
  Rendered out;
  const std::string whole = text_of(conversation, place, ask);
  std::size_t at = 0;
  const auto add = [&](std::size_t end, bool counted) {
    if (end > at) out.parts.push_back({whole.substr(at, end - at), false, counted});
    at = std::max(at, end);
  };
  for (std::size_t i = 0; i < conversation.size() && !ask; ++i) {
    if (conversation[i].role != ChatRole::kAssistant) continue;
    Span span;
    if (!find_answer(conversation, i, whole, place, span) || span.begin < at) {
      ++out.told_otherwise;
      continue;
    }
    add(span.begin, false);
    add(span.end, true);
  }
  if (!ask && at == 0)
    fail<InputError>(place,
                     "has no answer that the chat template of {} tells as the model writes it: end the "
                     "conversation with an answer",
                     path_);
  add(whole.size(), false);
  return out;
}

/// What comes after an answer that another question follows.
std::string ModelTemplate::find_answer_end() const {
  const std::string answer = "Quartz";
  const std::vector<ChatMessage> talk = {
      {ChatRole::kUser, "Hi"}, {ChatRole::kAssistant, answer}, {ChatRole::kUser, "Bye"}};
  try {
    const std::string text = text_of(talk, "", false);
    const std::size_t found = text.find(answer);
    if (found == std::string::npos) return "";
    const std::size_t after = text.find_first_not_of(" \t\r\n", found + answer.size());
    return after == std::string::npos ? "" : special_at(text, after);
  } catch (const InputError&) {
    return "";  // it has no form for this talk
  }
}

}  // namespace hetermoe
