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
    {.name = "qwen3",  // with thinking, as they were released first
     .begin = "",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "\n"},
     .answer_begin = "",
     .answer_end = "<|im_end|>",
     .special = {"<|im_start|>", "<|im_end|>"},
     .tools = ChatTools::kQwen,
     .thinks = true,
     .marks = {"<|im_start|>", "<|im_end|>", "reasoning_content", "last_query_index"},
     .no_marks = {"<|im_start|>assistant\\n<think>"}},  // always thinks: of 2507
    {.name = "chatml",
     .begin = "",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "\n"},
     .answer_begin = "",
     .answer_end = "<|im_end|>",
     .special = {"<|im_start|>", "<|im_end|>"},
     .tools = ChatTools::kQwen,
     .marks = {"<|im_start|>", "<|im_end|>"},
     .no_marks = {"<think>", "You are "}},  // Qwen2 says that where nobody else does
    {.name = "llama3.1",                    // of 3.1, and of 3.2 and 3.3 on the day that 3.1 takes for today
     .begin = "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n"
              "Cutting Knowledge Date: December 2023\nToday Date: 26 Jul 2024\n\n",
     .system = {"", ""},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", ""},
     .answer_begin = "",
     .answer_end = "<|eot_id|>",
     .special = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .trims = true,
     .system_end = "<|eot_id|>",
     .tools = ChatTools::kLlama,
     .marks = {"<|start_header_id|>", "<|eot_id|>", "Cutting Knowledge Date: December 2023"},
     .no_marks = {"strftime_now"}},
    {.name = "llama3",  // of 3.0
     .begin = "<|begin_of_text|>",
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", ""},
     .answer_begin = "",
     .answer_end = "<|eot_id|>",
     .special = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .trims = true,
     .marks = {"<|start_header_id|>", "<|eot_id|>"},
     .no_marks = {"Cutting Knowledge Date"}},
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
     .marks = {"<｜User｜>", "<｜Assistant｜>"},
     .no_marks = {"</think>"}},  // R1 and V3.1, which tell answers without thoughts
    {.name = "plain",            // for models that have none
     .begin = "",
     .system = {"System:\n", "\n\n"},
     .user = {"User:\n", "\n\n"},
     .assistant = {"Assistant:\n", ""},
     .answer_begin = "",
     .answer_end = "\n\n",
     .special = {},
     .end_token = true}};

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

}  // namespace hetermoe
