#include <fmt/ranges.h>

#include "hetermoe/base/error.h"
#include "hetermoe/data/chat_template.h"

// What a template makes of a conversation.
namespace hetermoe {
namespace {

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

bool uses_tools(const ChatMessage& message) {
  return message.role == ChatRole::kTool || !message.calls.empty();
}

std::vector<std::string> names_with_tools() {
  std::vector<std::string> out = chat_template_names();
  std::erase_if(out,
                [](const std::string& name) { return find_chat_template(name).tools == ChatTools::kNone; });
  return out;
}

std::string without(const std::string& text, const char* blanks) {
  const std::size_t first = text.find_first_not_of(blanks);
  return first == std::string::npos ? "" : text.substr(first);
}

/// As Python's json.dumps(value, ensure_ascii=False) writes it.
std::string python_json(const Json& value) {
  if (value.is_number_float()) {
    const std::string text = fmt::format("{}", value.get<double>());
    return text.find_first_of(".eni") == std::string::npos ? text + ".0" : text;  // 20.0 is no whole number
  }
  if (!value.is_structured()) return value.dump();
  std::string out;
  for (const auto& [key, entry] : value.items()) {
    if (!out.empty()) out += ", ";
    if (value.is_object()) out += Json(key).dump() + ": ";
    out += python_json(entry);
  }
  return value.is_object() ? "{" + out + "}" : "[" + out + "]";
}

/// What the assistant says after its answer, or in its place. say: the answer as it was rendered.
std::string calls_text(const ChatTemplate& how, const ChatMessage& message, const std::string& said) {
  std::string out;
  for (const ToolCall& call : message.calls) {
    if (how.tools == ChatTools::kLlama) {
      out += fmt::format("{{\"name\": \"{}\", \"parameters\": {}}}", call.name, python_json(call.arguments));
      continue;
    }
    const std::string arguments =
        call.arguments.is_string() ? call.arguments.get<std::string>() : python_json(call.arguments);
    out += fmt::format("{}<tool_call>\n{{\"name\": \"{}\", \"arguments\": {}}}\n</tool_call>",
                       said.empty() && out.empty() ? "" : "\n", call.name, arguments);
  }
  return out;
}

/// An answer and what was thought before it.
struct Thought {
  std::string reasoning, answer;
};
Thought thought_of(const ChatMessage& message) {
  const std::string& text = message.text;
  const std::size_t first = text.find("</think>"), last = text.rfind("</think>");
  if (message.reasoning || first == std::string::npos) return {message.reasoning.value_or(""), text};
  std::string reasoning = text.substr(0, first);
  reasoning.erase(reasoning.find_last_not_of('\n') + 1);
  const std::size_t begin = reasoning.rfind("<think>");
  if (begin != std::string::npos) reasoning = reasoning.substr(begin + 7);
  return {without(reasoning, "\n"), without(text.substr(last + 8), "\n")};
}

/// The text of answer i, calls included. after_question: no question follows.
std::string answer_text(const ChatTemplate& how, std::span<const ChatMessage> conversation, std::size_t i,
                        bool after_question) {
  const ChatMessage& message = conversation[i];
  if (!how.thinks) {
    const std::string text = how.trims ? trimmed(message.text) : message.text;
    return text + calls_text(how, message, text);
  }
  const Thought thought = thought_of(message);
  const std::string calls = calls_text(how, message, thought.answer);
  const bool shown = after_question && (i + 1 == conversation.size() || !thought.reasoning.empty());
  if (!shown) return thought.answer + calls;
  std::string reasoning = without(thought.reasoning, "\n");
  reasoning.erase(reasoning.find_last_not_of('\n') + 1);
  return "<think>\n" + reasoning + "\n</think>\n\n" + without(thought.answer, "\n") + calls;
}

/// The last message of the user that asks something; where there is none, the last of all.
std::size_t last_question(std::span<const ChatMessage> conversation) {
  for (std::size_t i = conversation.size(); i-- > 0;) {
    const std::string& text = conversation[i].text;
    const bool tool = text.starts_with("<tool_response>") && text.ends_with("</tool_response>");
    if (conversation[i].role == ChatRole::kUser && !tool) return i;
  }
  return conversation.size() - 1;
}

void add_tool(const ChatTemplate& how, std::span<const ChatMessage> conversation, std::size_t i,
              std::vector<ChatPart>& out) {
  const std::string& text = conversation[i].text;
  if (how.tools == ChatTools::kLlama) {
    add_literal(how, "<|start_header_id|>ipython<|end_header_id|>\n\n", false, out);
    add_text(out, python_json(text), false);
    return add_literal(how, "<|eot_id|>", false, out);
  }
  // One after another are one message of the user.
  const auto is_tool = [&](std::size_t k) {
    return k < conversation.size() && conversation[k].role == ChatRole::kTool;
  };
  if (i == 0 || !is_tool(i - 1)) add_literal(how, "<|im_start|>user", false, out);
  add_text(out, "\n<tool_response>\n" + text + "\n</tool_response>", false);
  if (!is_tool(i + 1)) add_literal(how, how.user.after, false, out);
}

void add_answer(const ChatTemplate& how, const std::string& text, bool counted, std::vector<ChatPart>& out) {
  add_literal(how, how.assistant.before, false, out);
  add_literal(how, how.answer_begin, counted, out);
  add_text(out, text, counted);
  if (how.end_token) out.push_back({"", true, counted});
  add_literal(how, how.answer_end, counted, out);
  add_literal(how, how.assistant.after, false, out);
}

}  // namespace

void check_renders(const ChatTemplate& how, std::span<const ChatMessage> conversation,
                   const std::string& place) {
  for (std::size_t i = 0; i < conversation.size(); ++i) {
    const ChatMessage& message = conversation[i];
    if (!uses_tools(message)) continue;
    if (how.tools == ChatTools::kNone) {
      fail<InputError>(place, "message {} {}, for which the template {} has no form: expected {}", i + 1,
                       message.calls.empty() ? "is a tool's" : "calls a tool", how.name,
                       fmt::join(names_with_tools(), " or "));
    }
    if (how.tools != ChatTools::kLlama || message.calls.empty()) continue;
    if (message.calls.size() > 1 || !trimmed(message.text).empty() ||
        !message.calls[0].arguments.is_object()) {
      fail<InputError>(
          place,
          "message {} has {} calls{}, expected one call with an object of arguments and no text: {} "
          "has no form for more",
          i + 1, message.calls.size(), trimmed(message.text).empty() ? "" : " and a text", how.name);
    }
  }
}

bool counts_answer(const ChatTemplate& how, std::span<const ChatMessage> conversation) {
  return !how.thinks || last_question(conversation) + 1 < conversation.size();
}

std::vector<ChatPart> answer_end_of(const ChatTemplate& how) {
  std::vector<ChatPart> out;
  add_literal(how, how.answer_end, true, out);
  return out;
}

std::vector<ChatPart> render(const ChatTemplate& how, std::span<const ChatMessage> conversation, bool ask) {
  std::vector<ChatPart> out;
  add_literal(how, how.begin, false, out);
  std::string joined;  // of the system, before the first message of the user
  const std::size_t question = last_question(conversation);
  if (conversation.empty() || conversation[0].role != ChatRole::kSystem)
    add_literal(how, how.system_end, false, out);
  for (std::size_t i = 0; i < conversation.size(); ++i) {
    const ChatMessage& message = conversation[i];
    const std::string text = how.trims ? trimmed(message.text) : message.text;
    if (message.role == ChatRole::kTool) {
      add_tool(how, conversation, i, out);
    } else if (message.role == ChatRole::kAssistant) {
      const bool after_question = i > question;
      add_answer(how, std::exchange(joined, "") + answer_text(how, conversation, i, after_question),
                 after_question || !how.thinks, out);
    } else if (message.role == ChatRole::kSystem && how.joins_system) {
      joined = how.system.before + text + how.system.after;
    } else {
      const bool system = message.role == ChatRole::kSystem;
      const ChatTurn& turn = system ? how.system : how.user;
      add_literal(how, turn.before, false, out);
      add_text(out, std::exchange(joined, "") + text, false);
      add_literal(how, turn.after, false, out);
      if (system) add_literal(how, how.system_end, false, out);
    }
  }
  if (ask) add_literal(how, how.assistant.before, false, out);
  return out;
}

}  // namespace hetermoe
