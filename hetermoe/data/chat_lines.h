#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "hetermoe/base/json.h"

// Conversations as people write them in JSON lines.
namespace hetermoe {

enum class ChatRole { kSystem, kUser, kAssistant, kTool };

/// Call of a tool by the assistant.
struct ToolCall {
  std::string name;
  Json arguments;  ///< an object, or a text
  std::string id = {};
};

struct ChatMessage {
  ChatRole role = ChatRole::kUser;
  std::string text;
  std::optional<std::string> reasoning = {};  ///< of an answer, where it stands apart from it
  std::vector<ToolCall> calls = {};           ///< after an answer, or in its place
  std::string name = {}, call_id = {};  ///< of who speaks, and of the call that a tool answers; empty = none
};

/// The conversation of a line: messages of {role, content}; conversations of {from, value} (ShareGPT);
/// instruction, input and output (Alpaca), with system; prompt and completion, texts or messages. Other keys
/// are passed over, but for `tools`. A message of the system comes first, and one of the user after it; one
/// of a tool comes after calls of the assistant (tool_calls); at least one is the assistant's. Throws
/// InputError that begins with `place` for anything else.
std::vector<ChatMessage> conversation_of(const Json& line, const std::string& place);

/// Whether a line has a key of conversations.
bool looks_like_conversation(const Json& line);

}  // namespace hetermoe
