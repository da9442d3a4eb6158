#include "hetermoe/data/chat_lines.h"

#include <array>

#include "hetermoe/base/error.h"
#include "hetermoe/data/json_lines.h"

namespace hetermoe {
namespace {

struct RoleName {
  const char* name;
  ChatRole role;
};
/// Those of messages, and those of ShareGPT and its kin.
constexpr std::array<RoleName, 8> kRoles = {{{"system", ChatRole::kSystem},
                                             {"user", ChatRole::kUser},
                                             {"human", ChatRole::kUser},
                                             {"assistant", ChatRole::kAssistant},
                                             {"gpt", ChatRole::kAssistant},
                                             {"bot", ChatRole::kAssistant},
                                             {"model", ChatRole::kAssistant},
                                             {"tool", ChatRole::kTool}}};

bool is_blank(const std::string& text) { return text.find_first_not_of(" \t\r\n") == std::string::npos; }

/// The text under a key that must be there.
const std::string& text_of(const Json& object, const char* key, const std::string& place) {
  const auto found = object.find(key);
  if (found == object.end())
    fail<InputError>(place, "has no \"{}\" but {}, expected a text there", key, keys_of(object));
  if (!found->is_string()) fail<InputError>(place, "\"{}\" is {}, expected a text", key, describe(*found));
  return found->get_ref<const std::string&>();
}

ChatRole role_of(const std::string& name, const char* key, const std::string& place) {
  for (const RoleName& row : kRoles) {
    if (name == row.name) return row.role;
  }
  fail<InputError>(
      place,
      "\"{}\" is \"{}\", expected system, user (or human), assistant (or gpt, bot, model) or tool: "
      "leave out or rename messages of other roles",
      key, name);
}

/// The entry is there and says something.
bool is_given(const Json& object, const char* key) {
  return object.contains(key) && !object[key].is_null() && !object[key].empty();
}

/// The text under a key that need not be there.
std::string text_if_any(const Json& object, const char* key) {
  return object.contains(key) && object[key].is_string() ? object[key].get<std::string>() : "";
}

ToolCall call_of(const Json& entry, const std::string& place) {
  if (!entry.is_object()) fail<InputError>(place, "is {}, expected an object", describe(entry));
  const Json& call = is_given(entry, "function") ? entry["function"] : entry;
  if (!call.is_object()) fail<InputError>(place, "\"function\" is {}, expected an object", describe(call));
  ToolCall out{text_of(call, "name", place), call.value("arguments", Json()), text_if_any(entry, "id")};
  if (!out.arguments.is_object() && !out.arguments.is_string())
    fail<InputError>(place, "\"arguments\" is {}, expected an object or a text", describe(out.arguments));
  return out;
}

/// What an answer has beside its text.
void read_answer(const Json& message, const std::string& place, ChatMessage& out) {
  if (message.contains("reasoning_content") && message["reasoning_content"].is_string())
    out.reasoning = message["reasoning_content"].get<std::string>();
  if (!is_given(message, "tool_calls")) return;
  const Json& calls = message["tool_calls"];
  if (!calls.is_array())
    fail<InputError>(place, "\"tool_calls\" is {}, expected a list of calls", describe(calls));
  for (std::size_t i = 0; i < calls.size(); ++i)
    out.calls.push_back(call_of(calls[i], fmt::format("{}, call {}", place, i + 1)));
}

void add_messages(const Json& list, const char* key, const std::string& place,
                  std::vector<ChatMessage>& out) {
  if (!list.is_array())
    fail<InputError>(place, "\"{}\" is {}, expected a list of messages", key, describe(list));
  for (std::size_t i = 0; i < list.size(); ++i) {
    const std::string where = fmt::format("{}, message {} of \"{}\"", place, i + 1, key);
    const Json& message = list[i];
    if (!message.is_object()) fail<InputError>(where, "is {}, expected an object", describe(message));
    const bool share = message.contains("from");
    const char* role = share ? "from" : "role";
    ChatMessage read{.role = role_of(text_of(message, role, where), role, where), .text = ""};
    read.name = text_if_any(message, "name"), read.call_id = text_if_any(message, "tool_call_id");
    if (read.role == ChatRole::kAssistant) read_answer(message, where, read);
    const char* text = share ? "value" : "content";
    if (read.calls.empty() || is_given(message, text)) read.text = text_of(message, text, where);
    out.push_back(std::move(read));
  }
}

/// A text of that role, or messages.
void add_part(const Json& line, const char* key, ChatRole role, const std::string& place,
              std::vector<ChatMessage>& out) {
  if (line.contains(key) && line[key].is_array()) return add_messages(line[key], key, place, out);
  out.push_back({role, text_of(line, key, place)});
}

std::vector<ChatMessage> messages_of(const Json& line, const std::string& place) {
  std::vector<ChatMessage> out;
  if (line.contains("messages")) {
    add_messages(line["messages"], "messages", place, out);
  } else if (line.contains("conversations")) {
    add_messages(line["conversations"], "conversations", place, out);
  } else if (line.contains("instruction")) {
    if (line.contains("system") && !is_blank(text_of(line, "system", place)))
      out.push_back({ChatRole::kSystem, line["system"]});
    std::string text = text_of(line, "instruction", place);
    if (line.contains("input") && !is_blank(text_of(line, "input", place)))
      text += "\n\n" + line["input"].get<std::string>();
    out.push_back({ChatRole::kUser, std::move(text)});
    out.push_back({ChatRole::kAssistant, text_of(line, "output", place)});
  } else if (line.contains("prompt")) {
    add_part(line, "prompt", ChatRole::kUser, place, out);
    add_part(line, "completion", ChatRole::kAssistant, place, out);
  } else {
    fail<InputError>(place,
                     "has no conversation but {}, expected messages, conversations, instruction and output, "
                     "or prompt and completion; text as it is needs no data.template",
                     keys_of(line));
  }
  return out;
}

}  // namespace

std::vector<ChatMessage> conversation_of(const Json& line, const std::string& place) {
  if (is_given(line, "tools"))
    fail<InputError>(
        place,
        "has \"tools\", whose signatures are not rendered here: leave them out, or make tokens with "
        "tools/tokenize_text.py --chat");
  std::vector<ChatMessage> out = messages_of(line, place);
  bool answered = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool answer = out[i].role == ChatRole::kAssistant;
    answered = answered || answer;
    if (answer && is_blank(out[i].text) && out[i].calls.empty())
      fail<InputError>(place, "answer in message {} is empty, expected a text: leave the line out", i + 1);
    if (i > 0 && out[i].role == ChatRole::kSystem)
      fail<InputError>(place, "message {} is the system's, expected it to be the first", i + 1);
    const bool hears = i > 0 && (out[i - 1].role == ChatRole::kTool || !out[i - 1].calls.empty());
    if (out[i].role == ChatRole::kTool && !hears)
      fail<InputError>(place, "message {} is a tool's, expected tool_calls of the assistant before it",
                       i + 1);
    if (i == 1 && answer && out[0].role == ChatRole::kSystem)
      fail<InputError>(place, "message 2 is the assistant's, expected one of the user after the system's");
  }
  if (!answered)
    fail<InputError>(place, "has {} messages, none of the assistant, expected an answer to learn",
                     out.size());
  return out;
}

bool looks_like_conversation(const Json& line) {
  for (const char* key : {"messages", "conversations", "instruction", "prompt"}) {
    if (line.contains(key)) return true;
  }
  return false;
}

}  // namespace hetermoe
