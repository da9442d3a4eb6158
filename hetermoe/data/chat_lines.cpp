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
constexpr std::array<RoleName, 7> kRoles = {{{"system", ChatRole::kSystem},
                                             {"user", ChatRole::kUser},
                                             {"human", ChatRole::kUser},
                                             {"assistant", ChatRole::kAssistant},
                                             {"gpt", ChatRole::kAssistant},
                                             {"bot", ChatRole::kAssistant},
                                             {"model", ChatRole::kAssistant}}};

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
  fail<InputError>(place,
                   "\"{}\" is \"{}\", expected system, user (or human) or assistant (or gpt, bot, model): "
                   "leave out or rename messages of other roles",
                   key, name);
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
    out.push_back({role_of(text_of(message, role, where), role, where),
                   text_of(message, share ? "value" : "content", where)});
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
  std::vector<ChatMessage> out = messages_of(line, place);
  bool answered = false;
  for (std::size_t i = 0; i < out.size(); ++i) {
    const bool answer = out[i].role == ChatRole::kAssistant;
    answered = answered || answer;
    if (answer && is_blank(out[i].text))
      fail<InputError>(place, "answer in message {} is empty, expected a text: leave the line out", i + 1);
    if (i > 0 && out[i].role == ChatRole::kSystem)
      fail<InputError>(place, "message {} is the system's, expected it to be the first", i + 1);
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
