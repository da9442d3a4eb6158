#include "hetermoe/data/model_template.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "hetermoe/data/dataset.h"
#include "tests/support/error_of.h"
#include "tests/support/work_folder.h"

// Chat templates of models' folders: what is rendered, and which of it is counted.
namespace hetermoe {
namespace {

const std::string kTemplates = HM_SOURCE_DIR "/tests/data/jinja/";

const Json& golden() {
  static const Json all = read_json(kTemplates + "golden.json");
  return all;
}

/// A folder with that template and the tokens of the golden texts.
void write_model(const WorkFolder& folder, const std::string& jinja, std::vector<std::string> special) {
  Json config = {{"bos_token", "<s>"}, {"eos_token", {{"content", "</s>"}}}, {"pad_token", "<pad>"}};
  for (std::size_t i = 0; i < special.size(); ++i)
    config["added_tokens_decoder"][std::to_string(i)] = {{"content", special[i]}, {"special", true}};
  folder.file("tokenizer_config.json", config.dump());
  folder.file("chat_template.jinja", jinja);
}

std::string template_of(const std::string& name) {
  return read_text(kTemplates + "templates/" + name + ".jinja");
}

struct Counted {
  std::string whole, marked;  ///< what is counted between [[ and ]]
};
Counted rendered(const ModelTemplate& model, const std::vector<ChatMessage>& talk, bool ask = false) {
  Counted out;
  for (const ChatPart& part : model.render(talk, "talk", ask).parts) {
    out.whole += part.text;
    out.marked += part.counted ? "[[" + part.text + "]]" : part.text;
  }
  return out;
}

const std::vector<ChatMessage> kChat = {{ChatRole::kUser, "Hi"},
                                        {ChatRole::kAssistant, "Hello"},
                                        {ChatRole::kUser, "Bye"},
                                        {ChatRole::kAssistant, "See you"}};

TEST(ModelTemplate, RendersMessagesOfLinesAsJinja2RendersThem) {
  int same = 0;
  for (const auto& [name, texts] : golden()["templates"].items()) {
    const WorkFolder folder;
    write_model(folder, template_of(name), {});
    const ModelTemplate model(folder.path().string());
    for (std::size_t t = 0; t < texts.size(); ++t) {
      if (texts[t][1].is_null()) continue;
      std::vector<ChatMessage> talk;
      try {
        talk = conversation_of(Json{{"messages", golden()["talks"][t]}}, "talk");
      } catch (const InputError&) {
        continue;  // an answer of blanks, which no run learns
      }
      EXPECT_EQ(rendered(model, talk, true).whole, texts[t][1]) << name << " talk " << t;
      ++same;
    }
  }
  EXPECT_GE(same, 100);
}

TEST(ModelTemplate, CountsAnswersAndWhatEndsThem) {
  const auto marked = [](const std::string& name, std::vector<std::string> special) {
    const WorkFolder folder;
    write_model(folder, template_of(name), std::move(special));
    return rendered(ModelTemplate(folder.path().string()), kChat).marked;
  };
  EXPECT_EQ(marked("mixtral", {}), "<s> [INST] Hi [/INST][[ Hello</s>]] [INST] Bye [/INST][[ See you</s>]]");
  EXPECT_EQ(marked("deepseek_v3", {"<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"}),
            "<s><｜User｜>Hi<｜Assistant｜>[[Hello<｜end▁of▁sentence｜>]]<｜User｜>Bye<｜Assistant｜>[[See "
            "you<｜end▁of▁sentence｜>]]");
  // Blanks after the token that ends an answer are no part of it. Earlier answers are told without thoughts.
  EXPECT_EQ(marked("qwen3", {"<|im_start|>", "<|im_end|>"}),
            "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHello<|im_end|>\n<|im_start|>user\nBye<|"
            "im_end|>\n"
            "<|im_start|>assistant\n[[<think>\n\n</think>\n\nSee you<|im_end|>]]\n");
  // No token ends an answer: the one of the next message does.
  EXPECT_EQ(
      marked("glm4_5", {"[gMASK]", "<sop>", "<|user|>", "<|assistant|>"}),
      "[gMASK]<sop><|user|>\nHi<|assistant|>[[\n<think></think>\nHello<|user|>]]\nBye<|assistant|>[[\n<think>"
      "</think>\nSee you]]");
}

/// The text of every answer of a random conversation is counted, or the answer is told otherwise.
TEST(ModelTemplate, EveryAnswerIsCountedOrToldOtherwise) {
  for (const std::string name : {"kimi_k2", "llama3", "olmoe", "mixtral"}) {
    const WorkFolder folder;
    write_model(folder, template_of(name), {"<|im_end|>", "<|eot_id|>"});
    const ModelTemplate model(folder.path().string());
    for (int i = 1; i < 20; ++i) {
      std::vector<ChatMessage> talk;
      std::vector<std::string> answers, counted;
      for (int m = 0; m <= i % 4; ++m) {
        talk.push_back({ChatRole::kUser, fmt::format("question {}", m)});
        talk.push_back({ChatRole::kAssistant, fmt::format("answer {}.{}", i, m)});
        answers.push_back(talk.back().text);
      }
      const ModelTemplate::Rendered got = model.render(talk, "talk");
      EXPECT_EQ(got.told_otherwise, 0);
      for (const ChatPart& part : got.parts) {
        if (!part.counted) continue;
        const std::size_t begin = part.text.find("answer"), end = part.text.find('<', begin);
        ASSERT_NE(end, std::string::npos) << name << ": " << part.text;  // the token that ends it
        counted.push_back(part.text.substr(begin, end - begin));
      }
      EXPECT_EQ(counted, answers) << name;
    }
  }
}

TEST(ModelTemplate, OneWhoseBeginningChangesIsRefused) {
  const WorkFolder folder;
  write_model(folder, "{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", {});
  const ModelTemplate model(folder.path().string());
  EXPECT_TRUE(error_of<InputError>([&] { model.render(kChat, "x.jsonl line 3"); })
                  .starts_with(
                      "[x.jsonl line 3] the chat template of " + folder.path().string() +
                      " tells what comes before the answer in message 4 otherwise when the answer is there"));
}

TEST(ModelTemplate, WhatTheTemplateRefusesIsToldWithTheLine) {
  const WorkFolder folder;
  write_model(folder, template_of("mixtral"), {});
  const ModelTemplate model(folder.path().string());
  const std::vector<ChatMessage> twice = {kChat[0], kChat[0], kChat[1]};
  const std::string error = error_of<InputError>([&] { model.render(twice, "x.jsonl line 3"); });
  EXPECT_TRUE(
      error.starts_with("[x.jsonl line 3] by the chat template of " + folder.path().string() + ", line "))
      << error;
  EXPECT_NE(error.find("After the optional system message, conversation roles must alternate"),
            std::string::npos);
  EXPECT_EQ(error_of<ConfigError>([&] { ModelTemplate(HM_SOURCE_DIR "/docs"); }).find("[data.template] "),
            0U);
}

TEST(ModelTemplate, FillsWindowsOfARun) {
  const WorkFolder folder;
  write_model(folder, template_of("mixtral"), {});
  DataOptions options;
  options.paths = {folder.file("x.jsonl", R"({"prompt": "a", "completion": "b"})"
                                          "\n")};
  options.chat_template = folder.path().string();
  options.validation_share = 0;
  const TokenStream tokens = load_dataset(options, 32).sources.at(0).all;
  const std::string text = "<s> [INST] a [/INST] b</s>";
  EXPECT_EQ(make_tokenizer("bytes")->decode(tokens.tokens(0, static_cast<i64>(text.size()))), text);
  EXPECT_EQ(tokens.num_counted(0, 32), 6);  // " b</s>"
  const auto tokenizer = make_tokenizer("bytes");
  const ChatEncoder encoder(folder.path().string(), *tokenizer, "bytes", {});
  EXPECT_EQ(tokenizer->decode(encoder.answer_end()), "</s>");
  const ChatTokens asked = encoder.encode(std::vector<ChatMessage>{kChat[0]}, "--prompt", true);
  EXPECT_EQ(tokenizer->decode(asked.tokens), "<s> [INST] Hi [/INST]");
  EXPECT_TRUE(asked.counted.empty());
}

}  // namespace
}  // namespace hetermoe
