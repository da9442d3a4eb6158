#include "hetermoe/data/chat_template.h"

#include <fmt/ranges.h>

#include "hetermoe/base/error.h"

namespace hetermoe {
namespace {

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
     .thinks = true},
    {.name = "chatml",
     .begin = "",
     .system = {"<|im_start|>system\n", "<|im_end|>\n"},
     .user = {"<|im_start|>user\n", "<|im_end|>\n"},
     .assistant = {"<|im_start|>assistant\n", "\n"},
     .answer_begin = "",
     .answer_end = "<|im_end|>",
     .special = {"<|im_start|>", "<|im_end|>"},
     .tools = ChatTools::kQwen},
    {.name = "llama3.1",  // of 3.1, and of 3.2 and 3.3 on the day that 3.1 takes for today
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
     .tools = ChatTools::kLlama},
    {.name = "llama3",  // of 3.0
     .begin = "<|begin_of_text|>",
     .system = {"<|start_header_id|>system<|end_header_id|>\n\n", "<|eot_id|>"},
     .user = {"<|start_header_id|>user<|end_header_id|>\n\n", "<|eot_id|>"},
     .assistant = {"<|start_header_id|>assistant<|end_header_id|>\n\n", ""},
     .answer_begin = "",
     .answer_end = "<|eot_id|>",
     .special = {"<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"},
     .trims = true},
    {.name = "mistral",  // of Mixtral 8x7B and Mistral 7B v0.1; later ones have tokens for [INST]
     .begin = "<s>",
     .system = {"", "\n\n"},
     .user = {"[INST] ", " [/INST]"},
     .assistant = {"", ""},
     .answer_begin = "",
     .answer_end = "</s>",
     .special = {"<s>", "</s>"},
     .joins_system = true},
    {.name = "deepseek-v2",
     .begin = "<｜begin▁of▁sentence｜>",
     .system = {"", "\n\n"},
     .user = {"User: ", "\n\n"},
     .assistant = {"Assistant:", ""},
     .answer_begin = " ",
     .answer_end = "<｜end▁of▁sentence｜>",
     .special = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"}},
    {.name = "deepseek-v3",
     .begin = "<｜begin▁of▁sentence｜>",
     .system = {"", ""},
     .user = {"<｜User｜>", ""},
     .assistant = {"<｜Assistant｜>", ""},
     .answer_begin = "",
     .answer_end = "<｜end▁of▁sentence｜>",
     .special = {"<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"}},
    {.name = "plain",  // for models that have none
     .begin = "",
     .system = {"System:\n", "\n\n"},
     .user = {"User:\n", "\n\n"},
     .assistant = {"Assistant:\n", ""},
     .answer_begin = "",
     .answer_end = "\n\n",
     .special = {},
     .end_token = true}};

}  // namespace

std::vector<std::string> chat_template_names() {
  std::vector<std::string> out;
  for (const ChatTemplate& row : kTable) out.emplace_back(row.name);
  return out;
}

std::string chat_template_list() { return fmt::format("{}", fmt::join(chat_template_names(), ", ")); }

const ChatTemplate* try_chat_template(const std::string& name) {
  for (const ChatTemplate& row : kTable) {
    if (name == row.name) return &row;
  }
  return nullptr;
}

const ChatTemplate& find_chat_template(const std::string& name) {
  if (const ChatTemplate* row = try_chat_template(name)) return *row;
  fail<ConfigError>("data.template",
                    "got {}, expected {}, or a folder whose tokenizer_config.json or chat_template.jinja "
                    "has the model's template",
                    name, chat_template_list());
}

}  // namespace hetermoe
